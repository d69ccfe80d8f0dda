"""What the console shows of a suggestion and its evidence."""

from dataclasses import replace

import pytest

from flettner.agent.api.documents import suggestion_of
from flettner.agent.domain.canary_evidence import CanaryEvidence, Counts, EProcessPair, GainBeside, Goodput
from flettner.agent.judge.canary.report import report_goodput
from flettner.agent.judge.wording import describe_duration, describe_odds
from flettner.agent.machine.guard import PERSON
from tests.support.console_data import scenery


@pytest.mark.parametrize(
    ("rule", "mitigation", "needed"),
    [(PERSON, False, "never"), ("admission", True, "if_missed"), ("admission", False, "always")],
)
def test_only_a_policys_change_needs_a_gain(rule: str, mitigation: bool, needed: str) -> None:
    state = scenery().targets()["chat"].state
    (made,) = state.suggestions.open
    proposal = replace(made.proposal, rule=rule, mitigation=mitigation)

    assert suggestion_of(replace(made, proposal=proposal), state).gain_needed == needed


def test_an_open_suggestion_has_the_whole_new_command_line() -> None:
    state = scenery().targets()["chat"].state
    (made,) = state.suggestions.open

    assert suggestion_of(made, state).command == (
        "vllm serve Qwen/Qwen3-8B --max-num-seqs 128 --max-num-batched-tokens 8192"
        " --gpu-memory-utilization 0.9 --enable-prefix-caching --max-model-len 16384"
    )
    assert suggestion_of(replace(made, status="denied"), state).command == ""


def test_an_unsafe_flag_leaves_the_command_line_out() -> None:
    state = scenery().targets()["chat"].state
    (made,) = state.suggestions.open
    made = replace(made, proposal=replace(made.proposal, to={"api_key": "secret"}))
    state = replace(state, suggestions=replace(state.suggestions, open=(made,)))

    assert suggestion_of(made, state).command == ""


def test_the_goodput_that_decides_is_reported() -> None:
    goodput = Goodput(
        beside=GainBeside(of_blue=EProcessPair(log_above=5.0)),
        counted=Counts(green=640, green_bad=4, control=1210, control_bad=300),
    )
    report = report_goodput(CanaryEvidence(better="better: fewer are late", goodput=goodput))

    assert report is not None
    assert (report.better, report.proof) == (148.0, "fewer are late")
    assert (report.green_bad, report.blue_of) == (4, 1210)
    assert report_goodput(CanaryEvidence()) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.5, "500 ms"),
        (45.0, "45 s"),
        (150.0, "2.5 min"),
        (1890.0, "32 min"),
        (9000.0, "2.5 h"),
    ],
)
def test_a_duration_is_told_as_a_person_would(seconds: float, text: str) -> None:
    assert describe_duration(seconds) == text


@pytest.mark.parametrize(
    ("log_e", "text"), [(0.0, "1 of 100"), (5.0, "148 of 100"), (20.0, "over 10,000 of 100")]
)
def test_evidence_beyond_every_threshold_has_no_exact_number(log_e: float, text: str) -> None:
    assert describe_odds(log_e, 4.60517) == text
