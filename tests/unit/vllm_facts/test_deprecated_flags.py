"""Replacements of removed flags."""

import pytest

from flettner.vllm_facts.deprecated_flags import ENVIRONMENT, RENAMED, DeprecatedFlag
from flettner.vllm_facts.flag_parser import edit_flags, parse_setting
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.releases import FLAGS
from flettner.vllm_facts.values import Value

ALL = {**RENAMED, **ENVIRONMENT}
CHANGED = [name for name, facts in KNOBS.items() if facts.today and name not in RENAMED]


@pytest.mark.parametrize("old", RENAMED)
def test_a_removed_flag_is_absent_from_vllm_and_has_advice(old: str) -> None:
    assert old not in FLAGS
    assert RENAMED[old].gone("0.32.0") is True
    assert RENAMED[old].how.endswith(".")


@pytest.mark.parametrize("old", ALL)
def test_the_replacement_is_a_current_flag(old: str) -> None:
    replaced = ALL[old]

    assert replaced.by.partition(".")[0] in FLAGS | {""}
    assert replaced.to.keys() <= FLAGS
    assert replaced.by or not replaced.carries
    assert all(KNOBS[knob].misfit(value) == "" for knob, value in replaced.to.items())


@pytest.mark.parametrize("old", CHANGED)
def test_a_flag_with_a_changed_meaning_still_exists(old: str) -> None:
    assert old in FLAGS
    assert KNOBS[old].today.endswith(".")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--swap-space 16 --max-num-seqs 8", "--max-num-seqs 8"),
        ("--num-scheduler-steps 8 -tp 2", "-tp 2"),
        ("--cuda-graph-sizes 1 2 4", "--cudagraph-capture-sizes 1 2 4"),
        ("--guided-decoding-backend xgrammar", "--structured-outputs-config.backend xgrammar"),
        ("--disable-log-requests", ""),
        ("--disable-mm-preprocessor-cache", "--mm-processor-cache-gb 0"),
        ("--no-worker-use-ray", ""),
        ("--max-num-partial-prefills 4", ""),
    ],
)
def test_a_command_line_is_updated(before: str, after: str) -> None:
    argv = ["vllm", "serve", "org/model", *before.split()]
    changes: dict[str, Value] = {}
    for knob, value in parse_setting(argv).items():
        if knob in RENAMED:
            changes |= RENAMED[knob].changes(knob, value)

    assert edit_flags(argv, changes) == ["vllm", "serve", "org/model", *after.split()]


@pytest.mark.parametrize(
    ("version", "gone"), [("0.17.1", False), ("0.18.0", True), ("0.33", True), ("dev", None), (None, None)]
)
def test_removal_depends_on_the_version(version: str | None, *, gone: bool | None) -> None:
    assert RENAMED["swap_space"].gone(version) is gone


def test_a_value_is_carried_only_where_it_means_the_same() -> None:
    carried = DeprecatedFlag(by="new", since="0.12", how="Write --new.", carries=True)

    assert carried.changes("old", 3) == {"old": None, "new": 3}
    assert DeprecatedFlag(by="new", since="0.12", how="It is not the same.").changes("old", 3) == {
        "old": None
    }
