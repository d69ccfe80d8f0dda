"""Sign-in to the console in the config: the secret's file, and the address to which people come back."""

from pathlib import Path

import pytest

from flettner.agent.config import loader
from flettner.agent.config.loader import Config
from flettner.agent.domain.errors import ConfigError

OIDC = """
[api.authenticators.oidc]
issuer = "https://login.example.com"
client_secret_file = "oidc.secret"
groups = { sre = "operator" }
[[targets]]
name = "chat"
[targets.engine]
kind = "process"
command = ["vllm", "serve", "m"]
"""


def parse(api: str, here: Path = Path("/etc/flettner")) -> Config:
    return loader.parse_config(f"[api]\n{api}\n{OIDC}", here=here)


def test_the_secret_is_a_file_next_to_the_config_or_a_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = 'public_url = "https://flettner.example.org"\nhosts = ["flettner.example.org"]'
    (beside,) = parse(api).authenticators
    (tmp_path / "oidc.secret").touch()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (credential,) = parse(api).authenticators

    files = [each.plugin.client_secret_file for each in (beside, credential)]
    assert files == ["/etc/flettner/oidc.secret", f"{tmp_path}/oidc.secret"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:8090", "http://localhost:8090", "http://[::1]:8090"])
def test_loopback_needs_neither_https_nor_a_listed_host(url: str) -> None:
    assert parse(f'public_url = "{url}"').public_url == url


@pytest.mark.parametrize(
    ("api", "why"),
    [
        ("", "[api] public_url: is required with [api.authenticators.oidc] client_secret_file"),
        ('public_url = "https://flettner.example.org"', "[api] hosts: flettner.example.org is missing"),
        (
            'public_url = "http://flettner.example.org"\nhosts = ["flettner.example.org"]',
            "[api] public_url: must begin with https://",
        ),
        (
            'public_url = "https://flettner.example.org/x"\nhosts = ["flettner.example.org"]',
            "[api] public_url: must have no path",
        ),
    ],
)
def test_an_address_to_which_nobody_could_come_back_is_refused(api: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(api)

    (line,) = str(caught.value).splitlines()
    assert line.startswith(why)
