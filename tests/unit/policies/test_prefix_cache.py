"""Rules X1 and X2: when each fires, does not fire, and is outranked."""

from dataclasses import replace

import pytest

from flettner.agent.domain.model import Bound
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Gpu, Reading
from flettner.policies.conformance.readings import a_context, a_reading, steady
from flettner.policies.prefix_cache import PrefixCache
from flettner.policies.thermal import Thermal
from flettner.rules.precedence import ranked
from flettner.vllm_facts.serve_config import Model, ServeConfig
from tests.support.proposals import precedence, rules

CACHING = "enable_prefix_caching"
BUSY = a_reading(prompt_tokens=2000)
MISSES = replace(BUSY, prefix_hit_ratio=0.001)
OFF = a_context({CACHING: False})


def proposed(reading: Reading, context: Context) -> list[str]:
    return rules(PrefixCache().propose(reading, context))


def test_restores_the_default_prefix_caching() -> None:
    (proposal,) = PrefixCache().propose(BUSY, OFF)

    assert (proposal.rule, dict(proposal.to), proposal.klass) == ("X1", {CACHING: None}, "auto")
    assert "2000 prompt tokens/s" in proposal.why


def test_respects_a_bound_that_allows_only_on() -> None:
    (proposal,) = PrefixCache().propose(
        BUSY, a_context({CACHING: False}, bounds={CACHING: Bound(allowed=(True,))})
    )

    assert dict(proposal.to) == {CACHING: True}


@pytest.mark.parametrize(
    ("reading", "context"),
    [
        pytest.param(BUSY, a_context({}), id="vLLM chooses"),
        pytest.param(replace(BUSY, facts={CACHING: "False"}), a_context({}), id="vLLM chose off: it cannot"),
        pytest.param(BUSY, a_context({CACHING: True}), id="it is on"),
        pytest.param(
            BUSY,
            replace(OFF, config=ServeConfig(setting=OFF.setting, model=Model(name="jamba", hybrid=True))),
            id="a hybrid model",
        ),
        pytest.param(a_reading(prompt_tokens=None), OFF, id="prompts are not known"),
        pytest.param(a_reading(prompt_tokens=0), OFF, id="no prompts"),
        pytest.param(replace(BUSY, coverage=0.7), OFF, id="scrapes are missing"),
        pytest.param(
            BUSY, a_context({CACHING: False}, bounds={CACHING: Bound(allowed=(False,))}), id="forbidden"
        ),
    ],
)
def test_x1_proposes_nothing(reading: Reading, context: Context) -> None:
    assert not proposed(reading, context)


def test_reports_a_cache_without_hits() -> None:
    (note,) = PrefixCache().propose(MISSES, a_context())

    assert (note.rule, note.klass) == ("X2", "note")
    assert note.why == "of 60000 prompt tokens in 30 s 0.1% were in the prefix cache"


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(replace(MISSES, prefix_hit_ratio=0.2), id="it hits"),
        pytest.param(replace(MISSES, prefix_hit_ratio=None), id="not known"),
        pytest.param(replace(MISSES, prompt_tokens_per_s=steady(100)), id="too few tokens"),
        pytest.param(replace(MISSES, coverage=0.7), id="scrapes are missing"),
    ],
)
def test_x2_proposes_nothing(reading: Reading) -> None:
    assert not proposed(reading, a_context())


def test_heat_outranks_x1_and_every_change_outranks_x2() -> None:
    hot = replace(BUSY, gpus=(Gpu(index=0, uuid="a", temperature_c=90.0),))

    assert precedence(hot, OFF, PrefixCache(), Thermal())[0] == ["T1"]
    both = [*PrefixCache().propose(MISSES, a_context()), *PrefixCache().propose(BUSY, OFF)]
    assert rules(ranked(both).winners) == ["X1", "X2"]
