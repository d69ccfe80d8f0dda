"""Proposals of shipped policies pass the guard's list of tunable knobs; all else is a note."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import Bound, Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.state import State
from flettner.agent.machine.guard import Guard, ProposalRefusal
from flettner.agent.plugins import loader
from flettner.policies.conformance import ANYTHING
from flettner.policies.conformance.readings import CASES, a_context, a_reading
from flettner.policies.conformance.safety_checks import harms
from tests.support.machine_stories import BLUE, NOON
from tests.support.sampling import examples

GUARD = Guard()
CASES_DRAWN = examples(1000)  # each of which all policies read
A_STEP = "in one change"  # how far a person may go in one; a policy's values are clamped
ODD = st.fixed_dictionaries(
    {},
    optional={
        "speculative_config": st.just('{"method": "ngram"}'),
        "spec_method": st.just("ngram"),
        "spec_tokens": st.integers(1, 8),
        "tokenizer_mode": st.just("slow"),
        "optimization_level": st.integers(0, 3),
        "compilation_config": st.just('{"cudagraph_mode": "NONE", "backend": "mine"}'),
        "compilation_config.cudagraph_mode": st.just("NONE"),
        "cudagraph_capture_sizes": st.just("1 2 4"),
        "max_cudagraph_capture_size": st.integers(1, 64),
        "kv_offloading_size": st.floats(0, 64),
        "api_server_count": st.integers(1, 4),
    },
)
SERIES = st.dictionaries(
    st.sampled_from(
        [
            "cpu_utilization",
            "request_tokens_p99",
            "request_tokens_max",
            "prompt_tokens_p50",
        ]
    ),
    st.floats(0, 1) | st.floats(1, 100_000),
)


def test_guard_admits_every_knob_of_the_shipped_policies() -> None:
    policies = [loader.load_plugin("policies", name)() for name in loader.list_plugins("policies")]

    @settings(ANYTHING, max_examples=CASES_DRAWN)
    @given(case=CASES, odd=ODD, series=SERIES)
    def any_case(
        case: tuple[Reading, Context], odd: dict[str, int | float | str], series: dict[str, float]
    ) -> None:
        reading, context = replace(case[0], series=series), case[1]
        context = replace(context, setting={**context.setting, **odd})
        state = State(target="chat", fleet=Fleet(servers=(replace(BLUE, setting=context.setting),)))
        for proposal in (proposal for policy in policies for proposal in policy.propose(reading, context)):
            if proposal.klass == "note":
                continue
            verdict = GUARD.admit_asked(state, proposal, actor="ann", at=NOON)
            is_refused = isinstance(verdict, ProposalRefusal) and A_STEP not in verdict.why
            assert not is_refused, (proposal, verdict)

    any_case()


@pytest.mark.parametrize(
    ("knob", "value", "bounds", "reported"),
    [
        ("quantization", "fp8", {}, ("X1: quantization is not tunable: propose it as a note",)),
        ("quantization", "fp8", {"quantization": Bound(allowed=("fp8",))}, ()),
        (
            "cudagraph_capture_sizes",
            "a b",
            {},
            ("X1: cudagraph_capture_sizes = 'a b', but it is whole numbers",),
        ),
    ],
)
def test_proposal_that_the_guard_refuses_counts_as_harm(
    knob: str, value: str, bounds: dict[str, Bound], reported: tuple[str, ...]
) -> None:
    proposal = Proposal(rule="X1", to={knob: value}, why="1", expects="", risks="", source="", klass="gated")

    harmful = harms(a_reading(), a_context(bounds=bounds), [proposal])

    assert len(harmful) == len(reported)
    assert all(harm.startswith(start) for harm, start in zip(harmful, reported, strict=True))
    assert not harms(a_reading(), a_context(), [replace(proposal, to={"quantization": None}, klass="note")])
