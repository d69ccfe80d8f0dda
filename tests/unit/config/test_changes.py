"""What differs between two config files, and what of it needs a restart."""

from pathlib import Path

import pytest

from flettner.agent.config.changes import ConfigChange, find_changes, find_fixed
from flettner.agent.config.loader import parse_config

FILE = """
[agent]
mode = "approve"
[[targets]]
name = "chat"
[targets.slo]
ttft = { under = "1s" }
[targets.engine]
kind = "process"
serving = "http://127.0.0.1:8000"
[targets.bounds.max_num_seqs]
max = 64
[[notify]]
kind = "slack"
url_file = "/etc/flettner/hook"
"""
OTHER = """
[[targets]]
name = "code"
[targets.engine]
kind = "process"
serving = "http://127.0.0.1:8001"
[targets.traffic]
listen = "127.0.0.1:8081"
"""


def changes(old: str, new: str, *, more: str = "") -> tuple[ConfigChange, ...]:
    """What a file with this text in place of another changes; `more` follows."""
    assert old in FILE
    here = Path("/etc/flettner")
    before, after = (parse_config(text, here=here) for text in (FILE, FILE.replace(old, new) + more))
    return find_changes(before.values, after.values)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('ttft = { under = "1s" }', 'ttft = { under = "500ms" }', ("targets.chat.slo.ttft.under", 1.0, 0.5)),
        ("max = 64", "max = 128", ("targets.chat.bounds.max_num_seqs.max", 64.0, 128.0)),
        ('mode = "approve"', 'mode = "auto"', ("agent.mode", "approve", "auto")),
        ("[[notify]]", "[policies]\nadmission = false\n[[notify]]", ("policies.admission", None, False)),
        ("[[notify]]", "[targets.rollout]\nhold = 9\n[[notify]]", ("targets.chat.rollout.hold", 1800, 9)),
        ("/etc/flettner/hook", "/etc/flettner/secret", ("notify.slack.url_file", "***", "***")),
    ],
)  # fmt: skip
def test_names_a_changed_key_with_its_values(
    old: str, new: str, expected: tuple[str, object, object]
) -> None:
    found = changes(old, new)

    assert [(change.key, change.before, change.after) for change in found] == [expected]
    assert find_fixed(found) == ()


def test_the_same_settings_written_differently_are_no_change() -> None:
    assert changes('under = "1s"', "under = 1.0, share = 0.95") == ()


@pytest.mark.parametrize(
    ("old", "new", "fixed"),
    [
        ('mode = "approve"', 'mode = "approve"\nstate_dir = "/srv/state"', ("agent.state_dir",)),
        ('mode = "approve"', 'mode = "approve"\nlearn = false', ("agent.learn",)),
        ("8000", "8002", ("targets.chat.engine.serving",)),
        ("[targets.slo]", "[targets.traffic]\nhold_s = 7\n[targets.slo]", ("targets.chat.traffic.hold_s",)),
        ('name = "chat"', 'name = "talk"', ("targets.chat", "targets.talk")),
        ('name = "chat"', 'name = "chat"\nprofile = "rag"', ("targets.chat.profile",)),
        ("[[notify]]", "[api]\nhosts = ['a']\n[[notify]]", ("api.hosts",)),
    ],
)  # fmt: skip
def test_names_what_needs_a_restart(old: str, new: str, fixed: tuple[str, ...]) -> None:
    assert find_fixed(changes(old, new)) == fixed


def test_a_further_target_is_named_as_a_whole() -> None:
    assert find_fixed(changes("", "", more=OTHER)) == ("targets.code",)


def test_values_of_untunable_knobs_and_of_programs_are_not_shown() -> None:
    hidden = changes(
        "[[notify]]", '[targets.bounds.hf_token]\nallowed = ["hf_verysecret"]\n[[notify]]'
    ) + changes("8000", "8002")

    assert hidden
    assert all(change.after == "***" for change in hidden)
