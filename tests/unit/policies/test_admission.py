"""Rules Q1, Q2, K1, K2 and K3: when each fires, does not fire, and is outranked."""

from dataclasses import replace

import pytest
from hypothesis import given

from flettner.agent.domain.model import Bound, Objective, Outcome, Proposal, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Gpu, Health, Latency, Queue, Reading, TimeShares, Trend, Workload
from flettner.policies.admission import Admission
from flettner.policies.conformance.readings import (
    CONTEXTS,
    NOON,
    PROMISE,
    READINGS,
    a_context,
    a_reading,
    late,
    promoted,
    rising,
    steady,
)
from flettner.policies.shared.sequence_demand import are_tokens_late_anyway
from flettner.vllm_facts.values import Value
from tests.support.proposals import changes

QUEUE = a_reading(running=4, waiting=9)
THRASH = a_reading(running=64, waiting=20, kv=0.97, preemptions=rising(0.5, 1.5))


def proposed(reading: Reading, context: Context | None = None) -> list[Proposal]:
    return list(Admission().propose(reading, context or a_context({"max_num_seqs": 4})))


def changes_of(reading: Reading, context: Context | None = None) -> list[tuple[str, dict[str, Value]]]:
    return changes(proposed(reading, context))


def test_sustained_queue_at_the_cap_with_a_free_cache_raises_the_cap() -> None:
    (proposal,) = proposed(QUEUE)

    assert (proposal.rule, dict(proposal.to), proposal.klass) == ("Q1", {"max_num_seqs": 16}, "auto")
    assert proposal.mitigation
    assert proposal.why == (
        "over 30 s 9.0 requests waited while 4.0 ran (max_num_seqs is 4) and the KV cache was at most "
        "20% full: raise to max_num_seqs 16"
    )
    assert {evidence.metric for evidence in proposal.evidence} == {
        "running",
        "waiting",
        "kv_usage_high",
        "preemptions",
    }


@pytest.mark.parametrize(
    ("reading", "setting", "to"),
    [
        pytest.param(QUEUE, {"max_num_seqs": 4}, {"max_num_seqs": 16}, id="covers running and waiting"),
        pytest.param(
            a_reading(running=4, waiting=9, kv=0.4),
            {"max_num_seqs": 4},
            {"max_num_seqs": 8},
            id="no further than the KV cache goes",
        ),
        pytest.param(
            a_reading(running=4, waiting=9, kv=0.5),
            {"max_num_seqs": 4},
            {"max_num_seqs": 6},
            id="half a step where a doubling would fill the cache",
        ),
        pytest.param(
            a_reading(running=4, waiting=9),
            {"max_num_seqs": 64, "max_num_active_seqs": 4},
            {"max_num_active_seqs": 16},
            id="the warm cap first",
        ),
        pytest.param(
            a_reading(running=4, waiting=90, kv=0.01),
            {"max_num_seqs": 8, "max_num_active_seqs": 4},
            {"max_num_active_seqs": 8},
            id="the warm cap up to the cold one",
        ),
        pytest.param(
            a_reading(running=8, waiting=4),
            {"max_num_seqs": 8, "max_num_active_seqs": 8},
            {"max_num_seqs": 16, "max_num_active_seqs": 16},
            id="both once they meet",
        ),
        pytest.param(
            a_reading(running=4, waiting=9, version="0.30.0"),
            {"max_num_seqs": 4, "max_num_active_seqs": 64},
            {"max_num_seqs": 16},
            id="the cold one where the version has no other",
        ),
        pytest.param(QUEUE, {}, {"max_num_seqs": 16}, id="from a plateau when the flag is not given"),
        pytest.param(
            a_reading(running=16, waiting=90, kv=0.01),
            {"max_num_seqs": 16, "max_num_batched_tokens": 32},
            {"max_num_seqs": 32},
            id="not above the tokens of a step",
        ),
    ],
)
def test_q1_sizes_its_step(reading: Reading, setting: dict[str, Value], to: dict[str, Value]) -> None:
    assert changes_of(reading, a_context(setting)) == [("Q1", to)]


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(a_reading(running=4, waiting=9, coverage=0.7), id="scrapes are missing"),
        pytest.param(a_reading(running=0, waiting=0), id="idle"),
        pytest.param(a_reading(running=4, waiting=rising(0, 9), kv=0.4), id="the queue has only just come"),
        pytest.param(a_reading(running=4, waiting=9, kv=0.7), id="the cache is not free enough"),
        pytest.param(a_reading(running=4, waiting=9, kv=None), id="the cache is not known"),
        pytest.param(a_reading(running=2, waiting=9), id="the cap is not reached (Q4)"),
    ],
)
def test_q1_proposes_nothing(reading: Reading) -> None:
    assert not proposed(reading)


def test_operators_bound_stops_the_increase() -> None:
    at_most = {"max_num_seqs": Bound(max=6)}

    assert changes_of(QUEUE, a_context({"max_num_seqs": 4}, bounds=at_most)) == [("Q1", {"max_num_seqs": 6})]
    assert not proposed(QUEUE, a_context({"max_num_seqs": 4}, bounds={"max_num_seqs": Bound(max=4)}))


def test_changes_both_caps_only_if_both_bounds_allow_it() -> None:
    setting = {"max_num_seqs": 4, "max_num_active_seqs": 4}

    assert not proposed(QUEUE, a_context(setting, bounds={"max_num_active_seqs": Bound(max=4)}))


@pytest.mark.parametrize(
    ("outcome", "silent"),
    [
        pytest.param(promoted("max_num_seqs", 8, 4, ago_s=60), True, id="lowered a minute ago"),
        pytest.param(promoted("max_num_active_seqs", None, 4, ago_s=60), True, id="first set a minute ago"),
        pytest.param(promoted("max_num_seqs", 2, 4, ago_s=60), False, id="raised a minute ago"),
        pytest.param(promoted("max_num_seqs", 8, 4, ago_s=601), False, id="lowered long ago"),
        pytest.param(promoted("watermark", 0.02, 0.0, ago_s=60), False, id="another knob"),
    ],
)
def test_does_not_revert_a_change_before_it_settles(outcome: Outcome, *, silent: bool) -> None:
    context = a_context({"max_num_seqs": 4}, outcomes=(outcome,))

    assert bool(proposed(QUEUE, context)) is not silent


def test_thrashing_proposes_a_watermark_then_fewer_sequences_and_never_more() -> None:
    proposals = proposed(THRASH, a_context({"max_num_seqs": 64}))

    assert [(p.rule, dict(p.to), p.klass) for p in proposals] == [
        ("K1", {"watermark": 0.02}, "auto"),
        ("K1", {"max_num_active_seqs": 56}, "auto"),
        ("Q2", {}, "note"),
    ]
    assert [p.mitigation for p in proposals] == [True, True, False]


@pytest.mark.parametrize(
    ("setting", "version", "first"),
    [
        pytest.param({"watermark": 0.02}, "0.32.0", {"watermark": 0.05}, id="the next watermark"),
        pytest.param({"watermark": 0.05}, "0.32.0", {"max_num_active_seqs": 56}, id="no watermark is left"),
        pytest.param({}, "0.28.0", {"watermark": 0.02}, id="a version with watermark"),
        pytest.param({}, "0.20.0", {"max_num_seqs": 56}, id="a version without watermark"),
        pytest.param({}, None, {"max_num_seqs": 56}, id="an unknown version"),
        pytest.param({"watermark": 0.0}, None, {"watermark": 0.02}, id="a flag that the server runs with"),
    ],
)
def test_k1_proposes_the_mildest_remaining_remedy(
    setting: dict[str, Value], version: str | None, first: dict[str, Value]
) -> None:
    reading = a_reading(running=64, kv=0.97, preemptions=rising(0.5, 1.5), version=version)

    assert changes_of(reading, a_context({"max_num_seqs": 64} | setting))[0] == ("K1", first)


def test_a_few_preemptions_before_a_request_has_ended_are_no_evidence() -> None:
    filling = replace(THRASH, work=Workload(arrivals_per_s=8.9, prompt_tokens=242.0))

    few = proposed(replace(filling, preemptions_per_s=rising(0.0, 0.28)), a_context())
    assert not [proposal for proposal in few if proposal.to]
    assert changes_of(replace(filling, preemptions_per_s=steady(1.0)), a_context({"max_num_seqs": 64}))


def test_lowers_the_cap_below_the_running_sequences() -> None:
    reading = a_reading(running=40, kv=0.97, preemptions=1, version="0.20.0")

    assert changes_of(reading, a_context({"max_num_seqs": 1024}))[0] == ("K1", {"max_num_seqs": 32})


def test_lowers_an_unknown_cap_from_the_running_sequences() -> None:
    reading = a_reading(running=rising(10, 40), kv=0.97, preemptions=1, version="0.20.0")

    assert changes_of(reading, a_context())[0] == ("K1", {"max_num_seqs": 16})


@pytest.mark.parametrize(
    "outcome",
    [promoted("max_num_seqs", 32, 64, ago_s=30), promoted("watermark", 0.02, 0.0, ago_s=30)],
    ids=["the cap was raised", "the watermark was lowered"],
)
def test_remedy_does_not_revert_the_last_promoted_change(outcome: Outcome) -> None:
    proposals = proposed(THRASH, a_context({"max_num_seqs": 64}, outcomes=(outcome,)))

    assert not set(outcome.to) & {knob for proposal in proposals for knob in proposal.to}


def test_answers_preemptions_with_an_unknown_cache() -> None:
    (watermark, fewer) = proposed(a_reading(running=64, kv=None, preemptions=1))

    assert watermark.why.startswith("1.00 preemptions/s over 30 s for lack of KV cache: keep 2% of it free")
    assert [evidence.metric for evidence in fewer.evidence] == ["preemptions", "waiting", "running"]


def test_never_lowers_one_sequence() -> None:
    reading = a_reading(running=1, kv=0.5, preemptions=1, version="0.20.0")

    assert not proposed(reading, a_context({"max_num_seqs": 1}))


@pytest.mark.parametrize(
    "preemptions", [steady(0.01), rising(2.0, 0.5)], ids=["one in a while", "they go away by themselves"]
)
def test_minor_preemptions_still_suppress_q1(preemptions: Trend) -> None:
    assert not proposed(a_reading(running=4, waiting=9, preemptions=preemptions))


def test_relieves_a_full_cache_with_declining_preemptions() -> None:
    reading = a_reading(running=64, kv=0.97, preemptions=rising(2.0, 0.5))

    assert changes_of(reading, a_context({"max_num_seqs": 64}))[0] == ("K2", {"watermark": 0.02})


@pytest.mark.parametrize(
    ("waiting", "rule"), [(0.0, "K2"), (5.0, "Q2")], ids=["without a queue", "with a queue"]
)
def test_reports_a_full_cache_without_preemptions_without_a_change(waiting: float, rule: str) -> None:
    (proposal,) = proposed(a_reading(running=4, waiting=waiting, kv=0.97))

    assert (proposal.rule, dict(proposal.to), proposal.klass) == (rule, {}, "note")


def test_cache_full_only_at_the_end_is_not_sustained() -> None:
    assert not proposed(a_reading(running=4, kv=rising(0.7, 0.99)))


LATE = a_reading(
    running=4,
    waiting=rising(0, 18),
    kv=0.1,
    ttft=late(0.4),
    ttft_shares=TimeShares(queue=0.88, prefill=0.1, outside=0.02),
    queue=Queue(running=4.0, kv_usage=0.1, wait_s=9.0),
)
NEEDS_16 = Workload(
    arrivals_per_s=6.0,
    prompt_tokens=200.0,
    answer_tokens=100.0,
    service_s=1.6,
    decode_step_s=0.016,
    token_s=8e-5,
)


SERVES_3 = Health(ended={"stop": 90.0})
"""Requests per second, in a window of 30 s."""


def test_the_attributed_queue_raises_the_cap_to_what_the_arrivals_need() -> None:
    (proposal,) = proposed(replace(LATE, health=SERVES_3, work=replace(NEEDS_16, lasting_arrivals_per_s=6.0)))

    assert (proposal.rule, dict(proposal.to)) == ("Q1", {"max_num_seqs": 32})
    assert proposal.why.startswith("40% of the requests were late and 88% of TTFT is queueing: over 30 s 9.0")
    assert proposal.evidence[0].metric == "ttft_queue_share"


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(replace(LATE, ttft_shares=TimeShares(queue=0.4, prefill=0.6)), id="prefill, not queue"),
        pytest.param(replace(LATE, queue=Queue(running=2.0, kv_usage=0.1, wait_s=9.0)), id="below the cap"),
        pytest.param(replace(LATE, ttft=late(0.06)), id="6 % may be chance where 5 % may be late"),
        pytest.param(replace(LATE, ttft=late(2 / 35, count=35)), id="2 of 35"),
        pytest.param(replace(LATE, ttft=late(0.4, count=10)), id="too few requests, and the queue is new"),
        pytest.param(
            replace(LATE, health=SERVES_3, work=replace(NEEDS_16, lasting_arrivals_per_s=16.0)),
            id="eight times as many at once serve a fifth less than arrive",
        ),
    ],
)
def test_q1_raises_only_what_its_share_can_cure(reading: Reading) -> None:
    assert not proposed(reading)


SHORT = replace(LATE, health=SERVES_3, work=replace(NEEDS_16, lasting_arrivals_per_s=16.0))
"""Eight times as many at once serve less than arrive."""


@pytest.mark.parametrize(
    ("costs", "bounds", "tried", "raises"),
    [
        pytest.param({"enforce_eager": True}, {}, {}, True, id="steps would be shorter with graphs"),
        pytest.param({"enable_prefix_caching": False}, {}, {}, True, id="prompts may share a prefix"),
        pytest.param({"enforce_eager": False}, {}, {}, False, id="steps are as short as can be"),
        pytest.param(
            {"enforce_eager": True}, {"enforce_eager": Bound(allowed=(True,))}, {}, False, id="it must stay"
        ),
        pytest.param(
            {"enforce_eager": True}, {}, {"enforce_eager": False}, True, id="alone it gained nothing"
        ),
        pytest.param(
            {"enforce_eager": True},
            {},
            {"enforce_eager": False, "max_num_seqs": 32},
            False,
            id="both together gained nothing",
        ),
    ],
)
def test_the_gain_of_a_cap_is_not_known_while_another_flag_costs_time(
    costs: dict[str, Value], bounds: dict[str, Bound], tried: dict[str, Value], raises: bool
) -> None:
    outcomes = (Outcome(at=NOON, result="no_gain", to=tried),) if tried else ()
    context = a_context({"max_num_seqs": 4, **costs}, bounds=bounds, outcomes=outcomes)

    assert bool(changes_of(SHORT, context)) is raises


@pytest.mark.parametrize(("cap", "running"), [(1, 0.6), (2, 1.5), (4, 3.1)])
def test_a_slot_that_is_free_between_two_steps_does_not_hide_the_cap(cap: int, running: float) -> None:
    reading = replace(LATE, work=NEEDS_16, queue=Queue(running=running, kv_usage=0.1, wait_s=9.0))

    assert [rule for rule, _ in changes_of(reading, a_context({"max_num_seqs": cap}))] == ["Q1"]


def test_small_steps_are_no_evidence_of_an_overload() -> None:
    work = replace(NEEDS_16, arrivals_per_s=40.0, step_tokens=30.0)

    assert changes_of(replace(LATE, work=work)) == [("Q1", {"max_num_seqs": 12})]


@pytest.mark.parametrize(
    ("late_ratio", "slo", "to"),
    [
        pytest.param(0.4, PROMISE, 8, id="what the arrivals need"),
        pytest.param(0.6, PROMISE, 32, id="the longest step where most requests are late"),
        pytest.param(0.6, replace(PROMISE, e2e=PROMISE.ttft), 8, id="not if durations are promised"),
        pytest.param(
            0.6, replace(PROMISE, itl=Objective(under_s=0.018, share=0.95)), 8, id="not beyond tokens in time"
        ),
    ],
)
def test_a_severe_queue_gets_the_longest_step(late_ratio: float, slo: Slo, to: int) -> None:
    reading = replace(LATE, ttft=late(late_ratio), work=replace(NEEDS_16, arrivals_per_s=0.5))

    assert changes_of(reading, a_context({"max_num_seqs": 4}, slo=slo)) == [("Q1", {"max_num_seqs": to})]


@pytest.mark.parametrize(
    ("running", "to"),
    [
        pytest.param(3.3, {"max_num_seqs": 32, "max_num_batched_tokens": 512}, id="both bind in turn"),
        pytest.param(2.5, None, id="the budget alone (P1)"),
    ],
)
def test_a_filled_budget_keeps_the_cap_from_being_reached(
    running: float, to: dict[str, Value] | None
) -> None:
    work = replace(NEEDS_16, prompt_tokens=600.0, step_tokens=50.0)
    reading = replace(LATE, work=work, queue=Queue(running=running, kv_usage=0.1, wait_s=9.0))
    context = a_context({"max_num_seqs": 4, "max_num_batched_tokens": 64})

    assert changes_of(reading, context) == ([("Q1", to)] if to else [])


def test_late_requests_that_still_wait_are_evidence() -> None:
    waiting = replace(late(0.0, count=5), overdue=40.0)

    assert proposed(replace(LATE, ttft=waiting, ttft_shares=TimeShares(queue=1.0)))


def test_one_cause_moves_the_cap_its_token_budget_and_its_graphs() -> None:
    prompts = replace(NEEDS_16, prompt_tokens=600.0)
    setting: dict[str, Value] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_cudagraph_capture_size": 8,
    }
    (proposal,) = proposed(replace(LATE, work=prompts), a_context(setting))

    assert dict(proposal.to) == {
        "max_num_seqs": 32,
        "max_num_batched_tokens": 512,
        "max_cudagraph_capture_size": 32,
    }


CROWDED = a_reading(
    running=96,
    kv=0.3,
    itl=late(0.6),
    itl_shares=TimeShares(decode=0.8, prefill=0.2),
    work=Workload(
        arrivals_per_s=4.0, prompt_tokens=100.0, answer_tokens=120.0, decode_step_s=0.07, token_s=2e-4
    ),
)
NO_TTFT = replace(PROMISE, ttft=None)


@pytest.mark.parametrize(
    ("reading", "slo", "to"),
    [
        pytest.param(CROWDED, NO_TTFT, {"max_num_seqs": 32}, id="the steps of 32 are in time"),
        pytest.param(CROWDED, PROMISE, {"max_num_seqs": 32}, id="the smaller batch serves all in time"),
        pytest.param(
            replace(CROWDED, work=replace(CROWDED.work, arrivals_per_s=10.0)), PROMISE, {}, id="it does not"
        ),
        pytest.param(
            replace(CROWDED, itl_shares=TimeShares(prefill=0.8, decode=0.2), work=Workload()),
            NO_TTFT,
            {},
            id="prompts delay the tokens (P2)",
        ),
        pytest.param(
            replace(CROWDED, work=replace(CROWDED.work, arrivals_per_s=10.0)),
            NO_TTFT,
            {},
            id="it does not, and an endless queue helps none",
        ),
        pytest.param(replace(CROWDED, waiting=steady(3)), NO_TTFT, {}, id="requests wait"),
        pytest.param(replace(CROWDED, itl=late(0.06)), NO_TTFT, {}, id="6 % may be chance"),
    ],
)
def test_q5_lowers_a_cap_whose_batches_are_too_slow(reading: Reading, slo: Slo, to: dict[str, Value]) -> None:
    moves = [change for change in changes_of(reading, a_context({"max_num_seqs": 256}, slo=slo)) if change[1]]

    assert moves == ([("Q5", to)] if to else [])


TOKENS_ONLY = Slo(itl=PROMISE.itl)


@pytest.mark.parametrize(
    ("itl", "arrivals", "to"),
    [
        pytest.param(late(0.0), 1.0, [], id="the tokens come in time"),
        pytest.param(late(0.06), 1.0, [], id="6 % may be chance"),
        pytest.param(late(0.3), 0.0, [], id="nothing arrives any more"),
        pytest.param(late(0.3), 1.0, ["max_num_active_seqs", "watermark"], id="the smaller batch serves all"),
        pytest.param(late(0.3), 7.0, ["watermark"], id="the smaller batch does not"),
    ],
)
def test_fewer_sequences_must_serve_the_arrivals(itl: Latency, arrivals: float, to: list[str]) -> None:
    work = Workload(
        arrivals_per_s=arrivals, prompt_tokens=100.0, answer_tokens=200.0, decode_step_s=0.04, token_s=8e-5
    )
    reading = replace(THRASH, itl=itl, work=work)
    proposals = proposed(reading, a_context({"max_num_seqs": 64}, slo=TOKENS_ONLY))

    assert sorted(knob for proposal in proposals for knob in proposal.to) == to


@pytest.mark.parametrize(
    ("lasting", "halves", "slo", "helps"),
    [
        pytest.param(2.5, (20.0, 22.0), PROMISE, True, id="less arrives than is served without preemptions"),
        pytest.param(8.0, (20.0, 22.0), PROMISE, False, id="more arrives, in the last minutes"),
        pytest.param(8.0, (20.0, 22.0), TOKENS_ONLY, True, id="only tokens are promised"),
        pytest.param(2.5, (200.0, 180.0), PROMISE, True, id="the queue empties by less than what arrives"),
        pytest.param(2.5, (200.0, 20.0), PROMISE, False, id="it empties by more"),
    ],
)
def test_relief_must_end_the_queue_in_which_all_are_late(
    lasting: float, halves: tuple[float, float], slo: Slo, helps: bool
) -> None:
    work = Workload(
        arrivals_per_s=4.0,
        lasting_arrivals_per_s=lasting,
        prompt_tokens=300.0,
        answer_tokens=300.0,
        decode_step_s=0.03,
        token_s=1.2e-4,
    )
    early, late_half = halves
    waiting = replace(steady(20), early=early, late=late_half)
    reading = replace(THRASH, work=work, waiting=waiting, ttft=late(0.9), itl=late(0.9), health=SERVES_3)

    assert any(to for _, to in changes_of(reading, a_context({"max_num_seqs": 64}, slo=slo))) is helps


@pytest.mark.parametrize(
    ("late_ratio", "under_s", "expected"), [(1.0, 0.005, True), (0.9, 0.005, False), (1.0, 5.0, False)]
)
def test_tokens_may_be_late_with_any_batch(late_ratio: float, under_s: float, *, expected: bool) -> None:
    """A step without prompts takes 0.016 s, of which at least half does not grow with the batch."""
    reading = replace(LATE, work=NEEDS_16, itl=late(late_ratio))
    context = a_context({"max_num_seqs": 8}, slo=Slo(itl=Objective(under_s=under_s, share=0.95)))

    assert are_tokens_late_anyway(reading, context) is expected


def test_the_cap_stays_where_tokens_are_late_with_any_batch() -> None:
    queued = replace(LATE, health=SERVES_3, work=replace(NEEDS_16, lasting_arrivals_per_s=6.0))
    slo = Slo(ttft=Objective(under_s=1.0, share=0.95), itl=Objective(under_s=0.005, share=0.95))
    context = a_context({"max_num_seqs": 8}, slo=slo)

    assert not proposed(replace(queued, itl=late(1.0)), context)


def test_preemptions_that_cost_little_lower_nothing() -> None:
    work = Workload(prompt_tokens=200.0, answer_tokens=100.0, token_s=8e-5)
    cheap = replace(THRASH, work=work)

    assert [p.rule for p in proposed(cheap, a_context({"max_num_seqs": 64})) if p.to] == []
    assert [p.rule for p in proposed(replace(cheap, work=replace(work, token_s=1e-3))) if p.to]


IDLE_GPU = Gpu(index=0, uuid="GPU-1", utilization=0.05)


def test_reports_an_idle_server_as_over_provisioned() -> None:
    reading = a_reading(running=1, kv=0.02, gpus=(IDLE_GPU,))

    (proposal,) = proposed(reading, a_context({"max_num_seqs": 256}))

    assert (proposal.rule, dict(proposal.to), proposal.klass) == ("K3", {}, "note")
    assert proposal.why.startswith("over-provisioned: over 30 s nothing waited, at most 1 of 256")


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(a_reading(running=1, kv=0.02), id="no GPU is seen"),
        pytest.param(
            a_reading(running=1, kv=0.02, gpus=(Gpu(index=0, uuid="GPU-1", utilization=0.9),)),
            id="the GPU works",
        ),
        pytest.param(a_reading(running=100, kv=0.02, gpus=(IDLE_GPU,)), id="many run"),
        pytest.param(
            a_reading(running=1, waiting=rising(0, 1), kv=0.02, gpus=(IDLE_GPU,)), id="requests waited"
        ),
    ],
)
def test_a_server_in_use_is_not_over_provisioned(reading: Reading) -> None:
    assert not proposed(reading, a_context({"max_num_seqs": 256}))


@pytest.mark.parametrize(
    "options",
    [
        {"settle_s": -1.0},
        {"queue_at_least": float("nan")},
        {"queue_at_least": 10**400},
        {"kv_free_below_ratio": 0.2},
        {"kv_full_above_ratio": 0.5},
        {"kv_full_above_ratio": 1.5},
    ],
)
def test_refuses_invalid_options(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Admission(**options)  # type: ignore[arg-type]


RAISES = ("Q1",)


@given(reading=READINGS, context=CONTEXTS)
def test_never_raises_sequences_under_cache_pressure(reading: Reading, context: Context) -> None:
    usage, preemptions = reading.kv_usage, reading.preemptions_per_s
    pressed = usage is None or usage.high >= 0.6 or (preemptions is not None and preemptions.mean > 0)

    proposals = Admission().propose(reading, context)

    assert not pressed or not any(p.rule in RAISES and p.to for p in proposals)


@given(reading=READINGS, context=CONTEXTS)
def test_step_follows_its_rule_and_keeps_cache_headroom(reading: Reading, context: Context) -> None:
    for proposal in Admission().propose(reading, context):
        for knob, value in proposal.to.items():
            before = context.setting.get(knob)
            assert isinstance(value, (int, float))
            if isinstance(before, int) and knob in ("max_num_seqs", "max_num_active_seqs"):
                assert (value > before) is (proposal.rule in RAISES)
            if (
                proposal.rule in RAISES
                and knob == "max_num_seqs"
                and isinstance(before, int)
                and reading.kv_usage
            ):
                assert reading.kv_usage.high * value / before <= 0.8 + 1e-9
        if "max_num_seqs" in proposal.to and isinstance(context.setting.get("max_num_batched_tokens"), int):
            assert proposal.rule not in RAISES or (
                proposal.to["max_num_seqs"] <= context.setting["max_num_batched_tokens"]  # type: ignore[operator]
            )


def test_a_cache_is_full_at_its_watermark() -> None:
    reading = a_reading(running=33, waiting=47, kv=0.897)
    (note,) = proposed(reading, a_context({"max_num_seqs": 256, "watermark": 0.1}))

    assert (note.rule, note.klass) == ("Q2", "note")
    assert not proposed(reading, a_context({"max_num_seqs": 256}))


def test_triggering_evidence_comes_first() -> None:
    full = a_reading(running=40, waiting=14, kv=0.99)
    queue, (note,), (watermark, *_) = proposed(QUEUE), proposed(full), proposed(THRASH)

    assert [evidence.metric for evidence in queue[0].evidence][:2] == ["waiting", "running"]
    assert (note.rule, note.why) == ("Q2", "KV cache 99% full over 30 s, and 14.0 requests waited")
    assert note.evidence[0].metric == "kv_usage_high"
    assert watermark.evidence[0].metric == "preemptions"
