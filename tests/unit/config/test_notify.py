"""`[[notify]]` in the config: its values and errors."""

from pathlib import Path

import pytest

from flettner.agent.config import loader
from flettner.agent.config.loader import Config
from flettner.agent.domain.errors import ConfigError
from flettner.notifiers.pagerduty import Pagerduty
from flettner.notifiers.slack import Slack

TARGET = """
[[targets]]
name = "chat"
[targets.engine]
kind = "process"
command = ["vllm", "serve", "m"]
"""


def parsed(text: str, here: Path = Path("/etc/flettner")) -> Config:
    return loader.parse_config(TARGET + text, here=here)


def errors(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    return str(caught.value).splitlines()


def test_no_receivers_by_default() -> None:
    assert (parsed("").notify, parsed("").public_url) == ((), "")


def test_receivers_have_the_configured_name_or_their_kind() -> None:
    config = parsed("""
        [api]
        public_url = "https://flettner.example.org/console/"
        [[notify]]
        kind = "slack"
        url_file = "slack.url"
        [[notify]]
        kind = "pagerduty"
        name = "on-call"
        severity = "critical"
        key_file = "/run/secrets/pd"
    """)

    slack, duty = config.notify
    assert (slack.name, slack.severity, slack.plugin) == (
        "slack",
        "info",
        Slack(url_file="/etc/flettner/slack.url"),
    )
    assert (duty.name, duty.severity) == ("on-call", "critical")
    assert duty.plugin == Pagerduty(key_file="/run/secrets/pd")
    assert config.public_url == "https://flettner.example.org/console"


def test_systemd_credentials_take_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slack.url").write_text("https://hooks.example.org/x")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))

    (slack, other) = parsed("""
        [[notify]]
        kind = "slack"
        url_file = "slack.url"
        [[notify]]
        kind = "teams"
        url_file = "teams.url"
    """).notify

    assert slack.plugin == Slack(url_file=str(tmp_path / "slack.url"))
    assert other.plugin.url_file == "/etc/flettner/teams.url"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'kind = "slak"\nurl = "https://a"',
            "[notify slak] slak: no such plugin notifiers/slak.py; did you mean slack?",
        ),
        (
            'kind = "slack"',
            "[notify slack]: give one of url and url_file: a secret URL belongs in a file",
        ),
        (
            'kind = "slack"\nurl = "https://a"\nchannel = "x"',
            "[notify slack] channel: unknown key (there are: people, signing_secret_file, url, url_file)",
        ),
        ('url = "https://a"', "[[notify]] kind: missing; it is required"),
        (
            'kind = "slack"\nurl = "https://a"\nseverity = "high"',
            "[[notify]] severity: must be 'info', 'warning' or 'critical', not 'high'",
        ),
    ],
)
def test_names_the_invalid_value(text: str, message: str) -> None:
    assert errors(f"[[notify]]\n{text}") == [message]


def test_two_receivers_of_one_kind_require_names() -> None:
    table = '[[notify]]\nkind = "slack"\nurl = "https://a"\n'

    assert errors(table * 2) == ["[[notify]] name: slack is the name of 2 receivers: give each its own name"]


@pytest.mark.parametrize(
    "url",
    [
        "flettner.example.org",
        "ftp://a",
        "https://",
        "https://a?b",
        "https://a#b",
        "https://u:p@a",
        "http://[::1",
    ],
)
def test_rejects_a_public_url_that_cannot_start_links(url: str) -> None:
    (message,) = errors(f'[api]\npublic_url = "{url}"')

    assert message.startswith("[api] public_url: ")


MAIL = """
[[notify]]
kind = "mail"
server = "smtp.example.org"
sender = "flettner@example.org"
to = ["ops@example.org"]
"""
LINKS = 'people = { "ann@example.org" = ["ann", "operator"] }\nlink_key_file = "link.key"\n'


def test_links_in_mails_need_an_address_of_the_console() -> None:
    assert parsed(MAIL).notify[0].name == "mail"
    assert errors(MAIL + LINKS) == [
        "[api] public_url: is required with [[notify]] mail: people, which sends people there"
    ]
    api = '[api]\npublic_url = "https://flettner.example.org"\nhosts = ["flettner.example.org"]\n'
    assert parsed(f"{MAIL}{LINKS}{api}").notify[0].plugin.takes_decisions  # type: ignore[attr-defined]
