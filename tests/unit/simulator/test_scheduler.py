"""Invariants of the scheduler: budget, block accounting, no starvation, determinism."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flettner.simulator.drafts import Drafts
from flettner.simulator.hardware import PRESETS
from flettner.simulator.kv_cache import KvCache
from flettner.simulator.replay import Run, replay
from flettner.simulator.scheduler import Scheduler, SchedulerLimits, SimulatedRequest
from flettner.simulator.step_time import StepTime
from flettner.simulator.text import draws
from tests.support.sampling import examples

LAW = StepTime(hardware=PRESETS["4090-8b"])


def requests(
    seed: int, count: int, *, prompt: int = 200, wanted: int = 60, gap_s: float = 0.02
) -> list[SimulatedRequest]:
    random = draws(seed, "requests")
    at, made = 0.0, []
    for number in range(count):
        at += random.expovariate(1 / gap_s)
        made.append(
            SimulatedRequest(
                name=str(number),
                prompt=random.randint(1, prompt),
                wanted=random.randint(1, wanted),
                hashes=[hash((number % 3, block)) for block in range(40)],  # three prefixes are shared
                arrived_at=at,
            )
        )
    return made


def run(
    limits: SchedulerLimits, blocks: int, coming: list[SimulatedRequest], *, caching: bool = True
) -> tuple[Run, Scheduler]:
    scheduler = Scheduler(limits, KvCache(blocks, caching=caching))
    return replay(coming, scheduler, LAW.seconds), scheduler


LIMITS = st.builds(
    SchedulerLimits,
    max_num_seqs=st.integers(1, 12),
    max_num_batched_tokens=st.integers(16, 300),
    max_num_active_seqs=st.none() | st.integers(1, 12),
    max_num_scheduled_tokens=st.none() | st.integers(1, 300),
    long_prefill_token_threshold=st.sampled_from([0, 8, 64]),
    long_prefill_token_threshold_adaptive=st.booleans(),
    watermark=st.sampled_from([0.0, 0.05, 0.3]),
    scheduler_reserve_full_isl=st.booleans(),
)


DRAFTS = st.builds(
    Drafts,
    tokens=st.integers(1, 7),
    accepted=st.floats(0, 1),
    method=st.just("ngram"),
    random=st.builds(draws, st.just(1), st.just("drafts")),
)


@given(
    limits=LIMITS,
    blocks=st.integers(18, 60),
    seed=st.integers(0, 10_000),
    caching=st.booleans(),
    drafts=st.none() | DRAFTS,
)
@settings(max_examples=examples(160), deadline=None)
def test_all_requests_are_served_within_the_limits(
    limits: SchedulerLimits, blocks: int, seed: int, caching: bool, drafts: Drafts | None
) -> None:
    cache = KvCache(blocks, caching=caching)
    scheduler = Scheduler(limits, cache, drafts=drafts)
    coming = requests(seed, 15)
    for request in coming:
        scheduler.add(request)
    cap = min(limits.max_num_active_seqs or 99, limits.max_num_seqs)
    budget = min(limits.max_num_batched_tokens, limits.max_num_scheduled_tokens or 99_999)
    for _ in range(100_000):
        step = scheduler.plan()
        if step is None:
            break
        assert 0 < step.work.tokens <= budget
        assert len(scheduler.running) <= cap
        held = {block for request in scheduler.running for block in request.blocks}
        assert len(held) + cache.free == blocks
        for request, count in step.chunks:
            assert request.computed + count <= len(request.blocks) * cache.block_size
        scheduler.finish(step)

    assert not scheduler.waiting
    assert not scheduler.running
    assert cache.free == blocks
    assert [request.produced for request in coming] == [request.wanted for request in coming]


@given(limits=LIMITS, seed=st.integers(0, 1000))
@settings(max_examples=examples(40), deadline=None)
def test_the_simulation_is_deterministic(limits: SchedulerLimits, seed: int) -> None:
    first, _ = run(limits, 40, requests(seed, 12))
    again, _ = run(limits, 40, requests(seed, 12))

    assert [request.last_at for request in first.requests] == [request.last_at for request in again.requests]
    assert first.steps == again.steps


@given(seed=st.integers(0, 1000), every=st.integers(1, 5))
@settings(max_examples=examples(64), deadline=None)
def test_an_abort_at_any_moment_frees_the_blocks(seed: int, every: int) -> None:
    cache = KvCache(30)
    scheduler = Scheduler(SchedulerLimits(max_num_seqs=5, max_num_batched_tokens=64), cache)
    coming = requests(seed, 12)
    for request in coming:
        scheduler.add(request)
    for number in range(10_000):
        step = scheduler.plan()
        if step is None:
            break
        if number % every == 0 and (alive := [request for request in coming if not request.ended]):
            scheduler.abort(alive[number % len(alive)])
        scheduler.finish(step)

    assert cache.free == 30
    assert all(request.ended for request in coming)


def test_a_small_cache_preempts_and_serves_all_requests() -> None:
    limits = SchedulerLimits(max_num_seqs=16, scheduler_reserve_full_isl=False)
    short, scheduler = run(limits, 40, requests(1, 30, wanted=200, gap_s=0.001), caching=False)
    _, roomy = run(limits, 4000, requests(1, 30, wanted=200, gap_s=0.001), caching=False)

    assert scheduler.preemptions > 0
    assert roomy.preemptions == 0
    assert all(request.produced == request.wanted for request in short.requests)
    assert short.peak_kv_share > 0.9


def test_preempted_requests_go_to_the_front_of_the_queue() -> None:
    scheduler = Scheduler(SchedulerLimits(max_num_batched_tokens=2048), KvCache(8, caching=False))
    first, second, third = (SimulatedRequest(name=name, prompt=48, wanted=40) for name in ("a", "b", "c"))
    for request in (first, second, third):
        scheduler.add(request)
    while not scheduler.preemptions:
        step = scheduler.plan()
        assert step is not None
        scheduler.finish(step)

    assert scheduler.running == [first]
    assert list(scheduler.waiting) == [second, third]
    assert second.computed == 0


def test_a_watermark_reserves_blocks_and_avoids_preemptions() -> None:
    def preemptions(watermark: float) -> int:
        limits = SchedulerLimits(max_num_seqs=16, watermark=watermark)
        return run(limits, 60, requests(5, 60, wanted=200, gap_s=0.001), caching=False)[1].preemptions

    assert preemptions(0.3) < preemptions(0.0)


def test_a_request_too_large_for_the_free_blocks_blocks_later_small_ones() -> None:
    scheduler = Scheduler(SchedulerLimits(), KvCache(10, caching=False))
    for name, prompt in (("running", 80), ("big", 120), ("small", 10)):
        scheduler.add(SimulatedRequest(name=name, prompt=prompt, wanted=5))
    scheduler.plan()

    assert [request.name for request in scheduler.running] == ["running"]
    assert [request.name for request in scheduler.waiting] == ["big", "small"]


def test_without_full_prompt_reservation_the_first_chunk_suffices() -> None:
    limits = SchedulerLimits(max_num_batched_tokens=96, scheduler_reserve_full_isl=False)
    scheduler = Scheduler(limits, KvCache(10, caching=False))
    for name, prompt in (("running", 80), ("big", 120)):
        scheduler.add(SimulatedRequest(name=name, prompt=prompt, wanted=5))
    scheduler.plan()

    assert [request.name for request in scheduler.running] == ["running", "big"]


def test_a_single_long_prompt_may_use_the_full_budget() -> None:
    limits = SchedulerLimits(max_num_batched_tokens=512, long_prefill_token_threshold=64)
    scheduler = Scheduler(limits, KvCache(200))
    scheduler.add(SimulatedRequest(name="long", prompt=1000, wanted=1))
    alone = scheduler.plan()
    assert alone is not None
    scheduler.finish(alone)
    scheduler.add(SimulatedRequest(name="other", prompt=10, wanted=1))
    together = scheduler.plan()
    assert together is not None

    assert [count for _, count in alone.chunks] == [512]
    assert [count for _, count in together.chunks] == [64, 10]


def test_a_shared_prefix_is_computed_once() -> None:
    scheduler = Scheduler(SchedulerLimits(), KvCache(100))
    shared = [11, 12, 13, 14]
    first = SimulatedRequest(name="first", prompt=70, wanted=1, hashes=[*shared])
    second = SimulatedRequest(name="second", prompt=64, wanted=1, hashes=[*shared])
    other = SimulatedRequest(name="other", prompt=64, wanted=1, hashes=[21, 22, 23, 24])
    work = []
    for request in (first, second, other):
        scheduler.add(request)
        step = scheduler.plan()
        assert step is not None
        work.append(step.work.tokens)
        scheduler.finish(step)

    assert work == [70, 16, 64]  # of 64 cached tokens the last block is recomputed
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (198, 48)


def test_a_low_sequence_cap_queues_requests() -> None:
    def worst_ttft(cap: int) -> float:
        served, _ = run(SchedulerLimits(max_num_seqs=cap), 2588, requests(3, 80, wanted=80, gap_s=0.15))
        return max((request.first_at or 0) - request.arrived_at for request in served.requests)

    assert worst_ttft(4) > 4 * worst_ttft(16)


def test_max_num_active_seqs_caps_like_max_num_seqs() -> None:
    active, _ = run(
        SchedulerLimits(max_num_seqs=64, max_num_active_seqs=4), 2588, requests(3, 40, gap_s=0.01)
    )
    plain, _ = run(SchedulerLimits(max_num_seqs=4), 2588, requests(3, 40, gap_s=0.01))

    assert active.peak_running == plain.peak_running == 4
    assert active.seconds == plain.seconds


def test_a_request_that_can_never_fit_is_rejected() -> None:
    scheduler = Scheduler(SchedulerLimits(), KvCache(4))

    with pytest.raises(ValueError, match="80 tokens of KV cache, there are 64"):
        scheduler.add(SimulatedRequest(name="huge", prompt=70, wanted=10))


def test_a_blocked_queue_is_reported() -> None:
    limits = SchedulerLimits(max_num_batched_tokens=32, enable_chunked_prefill=False)

    with pytest.raises(RuntimeError, match="1 requests wait"):
        run(limits, 100, [SimulatedRequest(name="long", prompt=100, wanted=1)])


@pytest.mark.parametrize("blocks", [40, 4000], ids=["preempting", "roomy"])
@pytest.mark.parametrize("seqs", [3, 64])
def test_steps_repeated_at_once_are_those_taken_one_by_one(seqs: int, blocks: int) -> None:
    limits = SchedulerLimits(max_num_seqs=seqs, max_num_batched_tokens=256)
    slow, fast = (Scheduler(limits, KvCache(blocks)) for _ in range(2))
    for scheduler in (slow, fast):
        for request in requests(3, 40):
            scheduler.add(request)
    repeated = 0
    while (step := fast.plan()) is not None:
        fast.finish(step)
        times = fast.repeats(step)
        fast.repeat(times)
        repeated += times
        for _ in range(1 + times):
            plain = slow.plan()
            assert plain is not None
            assert plain.work.sequences == step.work.sequences
            slow.finish(plain)
        assert [(r.name, r.produced, len(r.blocks)) for r in slow.running] == [
            (r.name, r.produced, len(r.blocks)) for r in fast.running
        ]
    assert slow.plan() is None
    assert repeated > 0
