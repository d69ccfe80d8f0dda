"""Rules P1, P2 and P3: when each fires, does not fire, and is outranked."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given

from flettner.agent.domain.model import Bound, Outcome, Proposal, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Gpu, Latency, Queue, Reading, TimeShares, Trend, Workload
from flettner.policies.conformance.readings import (
    CONTEXTS,
    NOON,
    PROMISE,
    READINGS,
    a_context,
    a_reading,
    late,
    promoted,
    steady,
)
from flettner.policies.prefill_budget import PrefillBudget
from flettner.vllm_facts.values import Value
from tests.support.proposals import changes

FINE = late(0.0)
LATE_TOKENS = late(0.2, p50=0.02)
LONG = Workload(prompt_tokens=3000.0, step_tokens=250.0)


def by_prefill(reading: Reading) -> Reading:
    return replace(reading, ttft_shares=TimeShares(prefill=0.9, outside=0.1), work=LONG)


SLOW_START = by_prefill(a_reading(ttft=late(0.2), itl=FINE))
SLOW_TOKENS = a_reading(ttft=FINE, itl=LATE_TOKENS)


def proposed(reading: Reading, context: Context | None = None) -> list[Proposal]:
    return list(PrefillBudget().propose(reading, context or a_context({"max_num_batched_tokens": 2048})))


SMALL = a_context({"max_num_batched_tokens": 256})


def changes_of(
    reading: Reading, setting: dict[str, Value], slo: Slo = PROMISE
) -> list[tuple[str, dict[str, Value]]]:
    return changes(proposed(reading, a_context(setting, slo=slo)))


def test_prompts_in_small_pieces_raise_the_token_budget() -> None:
    (proposal,) = proposed(SLOW_START, SMALL)

    assert (proposal.rule, dict(proposal.to)) == ("P1", {"max_num_batched_tokens": 1024})
    assert (proposal.klass, proposal.mitigation) == ("auto", True)
    assert proposal.why == (
        "20% of the requests were late, 90% of TTFT is prefill and 0% queueing, with 250 tokens in the mean "
        "step and 0.0 waited: raise max_num_batched_tokens from 256 to 1024"
    )


def test_late_tokens_keep_the_budget_unless_another_flag_costs_time_in_each_step() -> None:
    both_late = replace(SLOW_START, itl=LATE_TOKENS)

    assert not changes_of(both_late, {"max_num_batched_tokens": 256})
    assert changes_of(both_late, {"max_num_batched_tokens": 256, "enforce_eager": True}) == [
        ("P1", {"max_num_batched_tokens": 1024})
    ]


QUEUED = a_reading(
    running=6,
    waiting=20,
    ttft=late(0.9),
    itl=FINE,
    ttft_shares=TimeShares(queue=0.95, prefill=0.05),
    queue=Queue(running=6.0, kv_usage=0.2, wait_s=4.0),
    work=replace(LONG, prompt_tokens=100.0, step_tokens=62.0),
)


@pytest.mark.parametrize(
    ("reading", "setting", "to"),
    [
        pytest.param(QUEUED, {"max_num_batched_tokens": 64, "max_num_seqs": 64}, 512, id="the budget"),
        pytest.param(QUEUED, {"max_num_batched_tokens": 64, "max_num_seqs": 6}, None, id="the cap (Q1)"),
        pytest.param(QUEUED, {"max_num_batched_tokens": 512, "max_num_seqs": 64}, None, id="half empty"),
        pytest.param(
            replace(QUEUED, queue=Queue(running=6.0, kv_usage=0.99, wait_s=4.0)),
            {"max_num_batched_tokens": 64, "max_num_seqs": 64},
            None,
            id="the KV cache",
        ),
    ],
)
def test_a_queue_is_the_budgets_if_nothing_else_is_reached(
    reading: Reading, setting: dict[str, Value], to: int | None
) -> None:
    assert changes_of(reading, setting) == ([("P1", {"max_num_batched_tokens": to})] if to else [])


@pytest.mark.parametrize(
    ("gib", "name", "budget", "tokens", "to"),
    [
        pytest.param(80, "NVIDIA H100", 2048, 1900, 8192, id="full, and a quarter of the GPU's default"),
        pytest.param(80, "NVIDIA H100", 2048, 900, None, id="half empty"),
        pytest.param(80, "NVIDIA H100", 8192, 8000, None, id="the GPU's default"),
        pytest.param(24, "NVIDIA L4", 2048, 1900, None, id="the default of a small GPU"),
        pytest.param(24, "NVIDIA L4", 1024, 1000, 2048, id="half of it"),
    ],
)
def test_a_full_budget_rises_to_the_default_of_the_gpu(
    gib: int, name: str, budget: int, tokens: float, to: int | None
) -> None:
    gpus = (Gpu(index=0, uuid="GPU-1", name=name, memory_total_mib=gib * 1024.0),)
    full = replace(QUEUED, gpus=gpus, work=replace(QUEUED.work, step_tokens=tokens))

    expected = [("P1", {"max_num_batched_tokens": to})] if to else []
    assert changes_of(full, {"max_num_batched_tokens": budget, "max_num_seqs": 64}) == expected


@pytest.mark.parametrize("budget", [2048, 8192])
def test_a_large_budget_is_not_the_cause(budget: int) -> None:
    assert not proposed(SLOW_START, a_context({"max_num_batched_tokens": budget}))


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(replace(SLOW_START, coverage=0.7), id="scrapes are missing"),
        pytest.param(
            replace(SLOW_START, ttft_shares=TimeShares(queue=0.9, prefill=0.1)),
            id="a queue makes them late (Q1)",
        ),
        pytest.param(a_reading(preemptions=0.1, ttft=late(0.2), itl=FINE), id="preemptions (K1)"),
        pytest.param(a_reading(kv=0.95, ttft=late(0.2), itl=FINE), id="the cache is full (K2)"),
        pytest.param(a_reading(ttft=late(0.2, count=19), itl=FINE), id="too few requests"),
        pytest.param(a_reading(ttft=late(0.05), itl=FINE), id="the promise is kept"),
        pytest.param(a_reading(ttft=late(0.2), itl=late(0.04)), id="tokens have no slack to give"),
        pytest.param(a_reading(ttft=late(0.2)), id="tokens are not known"),
        pytest.param(a_reading(ttft=late(0.2), itl=LATE_TOKENS), id="both are late"),
        pytest.param(a_reading(), id="nothing is known"),
    ],
)
def test_p1_proposes_nothing(reading: Reading) -> None:
    assert not proposed(by_prefill(reading) if reading.ttft_shares is None else reading, SMALL)


def test_high_itl_during_prefill_lowers_the_token_budget() -> None:
    (proposal,) = proposed(SLOW_TOKENS)

    assert (proposal.rule, dict(proposal.to)) == ("P2", {"max_num_batched_tokens": 1024})
    assert (proposal.klass, proposal.mitigation) == ("auto", True)


@pytest.mark.parametrize(
    "reading",
    [pytest.param(a_reading(ttft=late(0.04), itl=LATE_TOKENS), id="first tokens have no slack to give")],
)
def test_p2_proposes_nothing(reading: Reading) -> None:
    assert not proposed(reading)


FEW, MANY = steady(90.0), steady(9000.0)


@pytest.mark.parametrize(
    ("prompts", "answers", "changes"),
    [
        pytest.param(steady(0), steady(700), False, id="no prompts at all"),
        pytest.param(FEW, steady(700), False, id="too few for so many late tokens"),
        pytest.param(MANY, steady(700), True, id="prompts in most of the steps"),
        pytest.param(FEW, None, True, id="unknown generation throughput"),
    ],
)
def test_high_itl_without_prefill_keeps_the_token_budget(
    prompts: Trend, answers: Trend | None, changes: bool
) -> None:
    """128 concurrent short chats: decoding alone exceeds the ITL objective."""
    reading = a_reading(running=128, ttft=FINE, itl=late(0.4, p50=0.02), prompt_tokens=prompts)

    (proposal,) = proposed(replace(reading, generation_tokens_per_s=answers))

    assert proposal.rule == "P2"
    assert bool(proposal.to) is changes
    assert proposal.why.startswith("decode-bound: ") is not changes


def test_change_of_an_inferred_budget_requires_approval() -> None:
    (proposal,) = proposed(SLOW_TOKENS, a_context())

    assert proposal.klass == "gated"
    assert "a guess: neither the flag nor the GPU is known" in proposal.why


@pytest.mark.parametrize(
    ("setting", "to"),
    [
        pytest.param({"max_num_batched_tokens": 512}, 256, id="down to 256"),
        pytest.param({"max_num_batched_tokens": 256}, None, id="not below 256"),
        pytest.param(
            {"max_num_batched_tokens": 2048, "max_num_seqs": 1500}, 1536, id="not below the sequences"
        ),
        pytest.param(
            {"max_num_batched_tokens": 2048, "max_num_seqs": 2048}, None, id="stopped by the sequences"
        ),
    ],
)
def test_p2_respects_the_minimum_of_vllm(setting: dict[str, Value], to: int | None) -> None:
    assert changes_of(SLOW_TOKENS, setting) == ([("P2", {"max_num_batched_tokens": to})] if to else [])


@pytest.mark.parametrize(
    ("gib", "name", "version", "to"),
    [
        pytest.param(0, "", "0.32.0", 1024, id="no GPU"),
        pytest.param(24, "NVIDIA L4", "0.32.0", 1024, id="small"),
        pytest.param(80, "NVIDIA H100", "0.32.0", 4096, id="large"),
        pytest.param(80, "NVIDIA A100", "0.32.0", 1024, id="A100"),
        pytest.param(180, "NVIDIA B200", "0.32.0", 8192, id="huge"),
        pytest.param(180, "NVIDIA B200", "0.26.0", 4096, id="huge, before 0.28"),
    ],
)
def test_unset_budget_is_the_vllm_default(gib: int, name: str, version: str, to: int) -> None:
    gpus = (Gpu(index=0, uuid="GPU-1", name=name, memory_total_mib=gib * 1024.0),) if gib else ()
    reading = a_reading(ttft=FINE, itl=LATE_TOKENS, version=version, gpus=gpus)

    assert changes_of(reading, {}) == [("P2", {"max_num_batched_tokens": to})]


@pytest.mark.parametrize(
    ("reading", "scheduled", "expected"),
    [
        pytest.param(SLOW_START, 256, ("P1", {"max_num_scheduled_tokens": 1024}), id="raised"),
        pytest.param(SLOW_TOKENS, 1024, ("P2", {"max_num_scheduled_tokens": 512}), id="lowered"),
        pytest.param(SLOW_TOKENS, 2048, ("P2", {"max_num_batched_tokens": 1024}), id="does not bind"),
    ],
)
def test_changes_the_scheduled_tokens_if_they_are_the_limit(
    reading: Reading, scheduled: int, expected: tuple[str, dict[str, Value]]
) -> None:
    setting: dict[str, Value] = {"max_num_batched_tokens": 2048, "max_num_scheduled_tokens": scheduled}

    assert changes_of(reading, setting) == [expected]


TAIL = late(0.02, p50=0.1, p99=0.9)  # 9 times, and above the objective


@pytest.mark.parametrize(
    ("reading", "current", "to"),
    [
        pytest.param(a_reading(ttft=TAIL, itl=FINE), 1024, 4096, id="TTFT raises up to the band"),
        pytest.param(a_reading(ttft=TAIL, itl=FINE), 4096, None, id="TTFT, inside the band"),
        pytest.param(a_reading(ttft=TAIL, itl=TAIL), 1024, None, id="both: no way is right"),
        pytest.param(a_reading(ttft=TAIL, itl=FINE, waiting=2), 1024, None, id="TTFT, from a queue"),
        pytest.param(a_reading(ttft=FINE, itl=TAIL), 16384, 8192, id="ITL lowers down to the band"),
        pytest.param(a_reading(ttft=FINE, itl=TAIL), 8192, None, id="ITL, inside the band"),
        pytest.param(
            a_reading(ttft=FINE, itl=late(0, p50=0.001, p99=0.04)), 16384, None, id="a harmless tail"
        ),
    ],
)
def test_p3_moves_the_budget_into_its_band_on_a_latency_tail(
    reading: Reading, current: int, to: int | None
) -> None:
    expected = [("P3", {"max_num_batched_tokens": to})] if to else []

    assert changes_of(reading, {"max_num_batched_tokens": current}) == expected


def test_latency_tail_counts_without_an_slo() -> None:
    reading = a_reading(ttft=replace(TAIL, over_slo=None))

    assert changes_of(reading, {"max_num_batched_tokens": 2048}, Slo()) == [
        ("P3", {"max_num_batched_tokens": 4096})
    ]


def test_p1_outranks_p3() -> None:
    tail = by_prefill(a_reading(ttft=late(0.2, p99=9.0), itl=FINE))

    assert changes_of(tail, {"max_num_batched_tokens": 256}) == [("P1", {"max_num_batched_tokens": 1024})]


@pytest.mark.parametrize(
    ("reading", "bound"),
    [pytest.param(SLOW_START, Bound(max=256), id="up"), pytest.param(SLOW_TOKENS, Bound(min=256), id="down")],
)
def test_stops_at_the_bound(reading: Reading, bound: Bound) -> None:
    context = a_context({"max_num_batched_tokens": 256}, bounds={"max_num_batched_tokens": bound})

    assert not proposed(reading, context)


@pytest.mark.parametrize(
    ("outcome", "silent"),
    [
        pytest.param(promoted("max_num_batched_tokens", 512, 256, ago_s=60), True, id="lowered just now"),
        pytest.param(promoted("max_num_scheduled_tokens", 512, 256, ago_s=60), True, id="its twin"),
        pytest.param(promoted("max_num_batched_tokens", 128, 256, ago_s=60), False, id="raised just now"),
        pytest.param(promoted("max_num_batched_tokens", 512, 256, ago_s=700), False, id="lowered long ago"),
    ],
)
def test_does_not_revert_a_change_before_it_settles(outcome: Outcome, *, silent: bool) -> None:
    context = a_context({"max_num_batched_tokens": 256}, outcomes=(outcome,))

    assert bool(proposed(SLOW_START, context)) is not silent


@pytest.mark.parametrize(
    "options",
    [
        {"fine_ratio": 1.5},
        {"tail_ratio": 1.0},
        {"requests_at_least": 0},
        {"requests_at_least": 10**400},
        {"settle_s": float("inf")},
    ],
)
def test_refuses_invalid_options(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        PrefillBudget(**options)  # type: ignore[arg-type]


@given(reading=READINGS, context=CONTEXTS)
def test_does_not_revert_a_promoted_change_on_the_same_metrics(reading: Reading, context: Context) -> None:
    for proposal in PrefillBudget().propose(reading, context):
        before = {knob: context.setting.get(knob) for knob in proposal.to}
        done = Outcome(at=NOON - timedelta(seconds=1), result="promoted", to=proposal.to, before=before)
        after = replace(context, setting={**context.setting, **proposal.to}, outcomes=(done,))
        way = proposal.rule, proposal.why.split(": ")[1].split()[0]

        again = PrefillBudget().propose(reading, after)

        assert all((p.rule, p.why.split(": ")[1].split()[0]) == way for p in again)


@given(reading=READINGS, context=CONTEXTS)
def test_never_proposes_both_directions_at_once(reading: Reading, context: Context) -> None:
    assert len(PrefillBudget().propose(reading, context)) <= 1


def test_latency_without_a_known_violation_share_is_not_healthy() -> None:
    unknown = Latency(count=200, p50=0.01, p95=0.02, p99=0.03)

    assert not proposed(replace(SLOW_START, itl=unknown), SMALL)


MIXED = a_reading(running=4, ttft=FINE, itl=LATE_TOKENS, itl_shares=TimeShares(prefill=0.9, decode=0.1))
WORK = Workload(arrivals_per_s=1.0, prompt_tokens=3000.0, decode_step_s=0.018, token_s=6e-5)


@pytest.mark.parametrize(
    ("work", "to"),
    [
        pytest.param(WORK, 384, id="a step of 0.0425 s"),
        pytest.param(replace(WORK, arrivals_per_s=3.0), None, id="the prompts leave no margin"),
        pytest.param(replace(WORK, arrivals_per_s=3.5), None, id="a step in time hardly serves the prompts"),
        pytest.param(replace(WORK, arrivals_per_s=5.0), None, id="smaller steps do not serve the prompts"),
        pytest.param(replace(WORK, decode_step_s=0.06), None, id="steps without prompts are late already"),
        pytest.param(replace(WORK, answer_tokens=3000.0), 384, id="as many as arrive decode in time"),
        pytest.param(replace(WORK, answer_tokens=5000.0), None, id="as many as arrive decode too slowly"),
    ],
)
def test_p2_lowers_to_a_step_that_is_in_time(work: Workload, to: int | None) -> None:
    (proposal,) = proposed(replace(MIXED, work=work), a_context({"max_num_batched_tokens": 8192}))

    assert dict(proposal.to) == ({"max_num_batched_tokens": to} if to else {})


def test_p2_keeps_the_budget_where_the_median_itl_is_late() -> None:
    late_median = replace(MIXED, work=WORK, itl=late(0.6, p50=0.06))

    (proposal,) = proposed(late_median, a_context({"max_num_batched_tokens": 8192}))

    assert (proposal.rule, dict(proposal.to)) == ("P2", {})
