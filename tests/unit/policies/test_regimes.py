"""PM4: the suggestion says which loads take turns, when each setting holds, and what that gains."""

from dataclasses import replace
from datetime import timedelta

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.regimes import Regime, RegimeAdvice, RegimePlan
from flettner.performance_model.band import Band
from flettner.performance_model.load_mixes import TwoMixes
from flettner.policies.conformance.readings import NOON, a_reading
from flettner.policies.regimes import Regimes
from flettner.vllm_facts.values import Setting

BUDGET = "max_num_batched_tokens"
BUSY = a_reading(running=6.0)
MIXES = TwoMixes(
    metric="prompt_tokens",
    low=1300,
    high=2000,
    below_tokens=1100,
    above_tokens=3400,
    above_share=0.4,
    above_hours=(0, 1, 22, 23),
    days=7.0,
)
ADVICE = RegimeAdvice(
    made_at=NOON,
    setting={BUDGET: 2048},
    mixes=MIXES,
    plan=RegimePlan(
        metric="prompt_tokens",
        low=1300,
        high=2000,
        below=Regime(values={BUDGET: 128}, missed=0.02),
        above=Regime(values={BUDGET: 2048}, missed=0.1),
    ),
    single={BUDGET: 512},
    single_attainment=0.66,
    attainment=0.94,
    assumed={},
    gain=Band(value=0.28, low=0.2, high=0.36),
    tried=9,
)


def propose(advice: RegimeAdvice | None, setting: Setting | None = None) -> list[Proposal]:
    context = Context(setting=ADVICE.setting if setting is None else setting, slo=None, regimes=advice)  # type: ignore[arg-type]
    return list(Regimes().propose(BUSY, context))


def test_it_says_which_loads_take_turns_and_what_a_setting_for_each_gains() -> None:
    (made,) = propose(ADVICE)

    assert (made.rule, made.klass, made.regimes) == ("PM4", "gated", ADVICE.plan)
    assert made.why.startswith("in 7 days prompts of about 1,100 and 3,400 tokens took turns")
    assert "the longer ones mostly 22:00 to 02:00 UTC" in made.why
    assert "94.0% of the requests meet the objectives" in made.why
    assert "(max_num_batched_tokens 512) 66.0% (+20.0 to +36.0 points)" in made.why
    assert made.expects == (
        "max_num_batched_tokens 2048 once prompts are longer than 2000 tokens for 5 minutes, "
        "max_num_batched_tokens 128 once shorter than 1300"
    )


def test_the_change_is_to_the_values_that_are_not_in_force() -> None:
    small = replace(ADVICE, setting={BUDGET: 128})
    unset = replace(ADVICE, setting={}, assumed={BUDGET: 2048})

    assert [dict(made.to) for made in propose(ADVICE)] == [{BUDGET: 128}]
    assert [dict(made.to) for made in propose(small, {BUDGET: 128})] == [{BUDGET: 2048}]
    assert [dict(made.to) for made in propose(unset, {})] == [{BUDGET: 128}]


def test_without_advice_or_with_one_for_another_setting_nothing_is_proposed() -> None:
    assert propose(None) == []
    assert propose(ADVICE, {BUDGET: 4096}) == []
    assert propose(replace(ADVICE, made_at=NOON - timedelta(hours=49))) == []


def test_hours_that_do_not_recur_are_not_named() -> None:
    (made,) = propose(replace(ADVICE, mixes=replace(MIXES, above_hours=())))

    assert "the longer ones at no certain hours" in made.why
