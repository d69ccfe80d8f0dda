"""Rule CL1: which findings on the flags are tried, and that every measured cause comes first."""

from dataclasses import replace

import pytest

from flettner.agent.domain.model import Bound
from flettner.agent.domain.ports import Context
from flettner.policies.admission import Admission
from flettner.policies.conformance.readings import a_context, a_reading
from flettner.policies.conformance.safety_checks import harms
from flettner.policies.static_findings import StaticFindings
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import ChangeClass, Knob, Value
from tests.support.proposals import precedence

BUSY = a_reading(running=16, waiting=4)
SETTING: dict[Knob, Value] = {"max_num_seqs": 16, "async_scheduling": False}


def finding(to: dict[Knob, Value], *, klass: ChangeClass = "auto") -> Finding:
    return Finding(rule="A1", klass=klass, severity="warning", why="it is off", source="vLLM docs", to=to)


ON = finding({"async_scheduling": True})


def given(*findings: Finding, bounds: dict[Knob, Bound] | None = None) -> Context:
    return replace(a_context(SETTING, bounds=bounds or {}), findings=findings)


def test_a_value_of_a_tunable_knob_is_tried() -> None:
    (made,) = StaticFindings().propose(BUSY, given(ON))

    assert (made.rule, dict(made.to), made.klass, made.mitigation) == (
        "CL1", {"async_scheduling": True}, "auto", False,
    )  # fmt: skip
    assert made.why == "lint rule A1 async-scheduling-off, from the flags alone: it is off"
    assert harms(BUSY, given(ON), (made,)) == ()


@pytest.mark.parametrize(
    ("context", "why"),
    [
        (given(finding({"quantization": "fp8"})), "it is another model"),
        (given(finding({"max_num_seqs": 64})), "the load decides it"),
        (given(finding({})), "it changes nothing"),
        (given(replace(ON, env={"VLLM_X": "1"})), "the environment is not flettner's"),
        (given(replace(ON, klass="note")), "it is a remark"),
        (given(replace(ON, severity="error")), "a server that runs has started"),
        (given(finding({"async_scheduling": False})), "it is so already"),
        (given(ON, bounds={"async_scheduling": Bound(allowed=(False,))}), "the operator does not allow it"),
        (given(), "nothing was found"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_finding_is_only_shown(context: Context, why: str) -> None:
    assert list(StaticFindings().propose(BUSY, context)) == [], why


def test_an_idle_server_shows_no_gain() -> None:
    idle = a_reading(running=0, waiting=0)

    assert list(StaticFindings().propose(idle, given(ON))) == []


def test_a_gated_knob_stays_gated() -> None:
    (made,) = StaticFindings().propose(BUSY, given(replace(ON, klass="gated")))

    assert made.klass == "gated"


def test_every_measured_cause_comes_first() -> None:
    assert precedence(BUSY, given(ON), StaticFindings(), Admission()) == (["Q1"], {"CL1": "Q1"})
