"""Rule P4: when it fires, does not fire, and is outranked."""

from dataclasses import replace

import pytest

from flettner.agent.domain.model import Bound
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.admission import Admission
from flettner.policies.conformance.readings import a_context, a_reading, late, steady
from flettner.policies.long_prompts import LongPrompts
from flettner.policies.prefill_budget import PrefillBudget
from tests.support.proposals import precedence

THRESHOLD, BUDGET = "long_prefill_token_threshold", "max_num_batched_tokens"
PROMPTS = {"prompt_tokens_p50": 200.0, "prompt_tokens_p99": 6000.0}
MIXED = a_reading(ttft=late(0.0, p50=0.1, p99=2.0), itl=late(0.0), series=PROMPTS)
SETTING = {BUDGET: 2048}


def test_caps_long_prompts_among_short_ones() -> None:
    (proposal,) = LongPrompts().propose(MIXED, a_context(SETTING))

    assert (proposal.rule, dict(proposal.to), proposal.klass) == ("P4", {THRESHOLD: 512}, "auto")
    assert "half of the prompts have at most 200 tokens, one in a hundred 6000 or more" in proposal.why


@pytest.mark.parametrize(
    ("reading", "context"),
    [
        pytest.param(replace(MIXED, series={}), a_context(SETTING), id="prompts are not known"),
        pytest.param(
            replace(MIXED, series={**PROMPTS, "prompt_tokens_p99": 900.0}),
            a_context(SETTING),
            id="none is long",
        ),
        pytest.param(
            replace(MIXED, series={**PROMPTS, "prompt_tokens_p50": 4000.0}), a_context(SETTING), id="all are"
        ),
        pytest.param(replace(MIXED, ttft=late(0.0)), a_context(SETTING), id="no tail"),
        pytest.param(
            replace(MIXED, ttft=late(0.0, p50=0.1, p99=2.0, count=5)),
            a_context(SETTING),
            id="too few requests",
        ),
        pytest.param(MIXED, a_context({**SETTING, THRESHOLD: 1024}), id="capped already"),
        pytest.param(MIXED, a_context(SETTING, bounds={THRESHOLD: Bound(max=0)}), id="forbidden"),
        pytest.param(
            replace(MIXED, preemptions_per_s=steady(0.5)), a_context(SETTING), id="it preempts (K1)"
        ),
        pytest.param(replace(MIXED, coverage=0.7), a_context(SETTING), id="scrapes are missing"),
    ],
)
def test_p4_proposes_nothing(reading: Reading, context: Context) -> None:
    assert not LongPrompts().propose(reading, context)


def test_p4_is_a_mitigation_if_an_slo_is_missed() -> None:
    for share, missed in ((0.0, False), (0.3, True)):
        (proposal,) = LongPrompts().propose(replace(MIXED, itl=late(share)), a_context(SETTING))
        assert proposal.mitigation is missed


def test_p4_outranks_p3_on_a_latency_tail() -> None:
    policies = LongPrompts(), PrefillBudget(), Admission()

    assert precedence(MIXED, a_context(SETTING), *policies) == (["P4"], {"P3": "P4"})
