"""The aggregation window: trends, coverage, latencies, shares, and the request counts of each second."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf, nan
from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.agent.domain.calibration import STREAMS
from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.reading import (
    Buckets,
    Drafting,
    EngineLiveness,
    EngineSample,
    Gpu,
    GpuSample,
    Incident,
    Reading,
    Request,
    RequestOutcome,
    RequestSample,
    SeriesSample,
    SourceState,
)
from flettner.agent.domain.request_counts import ClientBucket, RequestCounts, count_requests, meets_slo
from flettner.agent.judge.attainment import count_missed
from flettner.agent.observe.aggregator import MAX_NEW_SAMPLES, PENDING, REQUESTS, SOURCES, Aggregator

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SLO = Slo(ttft=Objective(under_s=0.5, share=0.95), e2e=Objective(under_s=2.0, share=0.95))
FULL_SLO = replace(SLO, itl=Objective(under_s=0.1, share=0.95))


def second(number: float) -> datetime:
    return NOON + timedelta(seconds=number)


def scrape(
    at_s: float, *, interval_s: float = 1.0, running: float = 4.0, waiting: float = 0.0
) -> EngineSample:
    return EngineSample(
        at=second(at_s), server="r0", interval_s=interval_s, running=running, waiting=waiting, kv_usage=0.5
    )


def request(
    outcome: RequestOutcome = "ok",
    *,
    ttft_s: float | None = 0.1,
    duration_s: float = 1.1,
    tokens: int | None = 11,
    server: str = "r0",
) -> Request:
    return Request(
        server=server, outcome=outcome, status=200, duration_s=duration_s, ttft_s=ttft_s, tokens=tokens
    )


def read(fold: Aggregator, at_s: float = 30, slo: Slo = SLO) -> Reading:
    fold.slo = slo
    reading = fold.reading("r0", second(at_s))
    assert reading is not None
    return reading


def folded(*samples: EngineSample) -> Aggregator:
    fold = Aggregator()
    for sample in samples:
        fold.add(sample)
    return fold


def test_a_signal_is_weighted_by_the_time_that_each_scrape_covers() -> None:
    quick = [scrape(number, running=0) for number in range(1, 16)]
    slow = [scrape(20, interval_s=5, running=10), scrape(25, interval_s=5, running=10), scrape(30, running=4)]

    running = read(folded(*quick, *slow)).running

    assert (running.low, running.high, running.early) == (0, 10, 0)
    assert running.late == pytest.approx((10 * 5 + 10 * 5 + 4) / 11)
    assert running.mean == pytest.approx(104 / 26)


def test_an_interval_that_crosses_the_middle_counts_in_both_halves() -> None:
    waiting = read(folded(scrape(17, interval_s=4, waiting=8), scrape(30, waiting=0))).waiting

    assert waiting.early == 8
    assert waiting.late == pytest.approx(16 / 3)


@pytest.mark.parametrize(
    ("seconds", "at_s", "coverage"),
    [
        pytest.param(range(1, 31), 30, 1.0, id="all"),
        pytest.param(range(16, 31), 30, 0.5, id="started in the middle"),
        pytest.param(range(1, 16), 30, 0.5, id="lost in the middle"),
        pytest.param(range(1, 31), 45, 0.5, id="stale since"),
        pytest.param([1, 30], 30, 2 / 30, id="two scrapes"),
    ],
)
def test_coverage_is_the_share_of_covered_seconds(seconds: range, at_s: float, coverage: float) -> None:
    assert read(folded(*(scrape(number) for number in seconds)), at_s).coverage == pytest.approx(coverage)


def test_a_scrape_after_a_long_gap_covers_only_its_last_seconds() -> None:
    assert read(folded(scrape(1), scrape(30, interval_s=29))).coverage == pytest.approx(6 / 30)


@pytest.mark.parametrize("at_s", [31, 0.5], ids=["too old", "not yet"])
def test_no_reading_without_a_fresh_scrape(at_s: float) -> None:
    assert folded(scrape(1)).reading("r0", second(at_s)) is None
    assert folded(scrape(1)).reading("r1", second(1)) is None


def test_a_first_scrape_gives_gauges_and_no_rate() -> None:
    reading = read(folded(scrape(30, interval_s=0, running=7)))

    assert (reading.running.mean, reading.running.late, reading.coverage) == (7, 7, 0)
    assert reading.preemptions_per_s is None


def test_counters_become_rates_and_a_ratio() -> None:
    busy = [
        replace(scrape(n, interval_s=2), preemptions=4, prompt_tokens=200, prefix_queries=100, prefix_hits=25)
        for n in (26, 28, 30)
    ]

    reading = read(folded(scrape(24, interval_s=0), *busy))

    assert reading.preemptions_per_s is not None
    assert reading.prompt_tokens_per_s is not None
    assert (reading.preemptions_per_s.mean, reading.prompt_tokens_per_s.high) == (2, 100)
    assert reading.prefix_hit_ratio == 0.25


def test_drafts_are_counted_over_the_window() -> None:
    drafting = [replace(scrape(n), drafts=10, drafted=30, accepted=6) for n in (29, 30)]

    assert read(folded(*drafting)).drafting == Drafting(drafts=20, drafted=60, accepted_ratio=0.2)
    assert read(folded(scrape(29), scrape(30))).drafting is None


def test_a_chunk_has_the_tokens_that_a_step_gives_a_sequence() -> None:
    """Of 30 tokens 20 were drafted: 10 steps, so that 11 chunks are about 31 tokens and 1 s is 30 gaps."""
    fold = folded(*(replace(scrape(n), generation_tokens=30, drafted=40, accepted=20) for n in range(25, 31)))

    fold.add(RequestSample(at=second(30), requests=(request(), request(server="r1"))))

    itl = read(fold).itl
    assert itl is not None
    assert itl.p50 == pytest.approx(1 / 30)
    assert fold.take_request_counts(second(30))["r1"] == count_requests([request(server="r1")])


def test_a_missing_metric_is_unknown_not_zero() -> None:
    bare = replace(scrape(30), kv_usage=None, missing=frozenset({"num_preemptions", "prompt_tokens"}))

    reading = read(folded(scrape(29), bare))

    assert (reading.kv_usage, reading.preemptions_per_s, reading.prompt_tokens_per_s) == (None, None, None)
    assert reading.generation_tokens_per_s is not None
    assert reading.prefix_hit_ratio is None
    assert reading.missing == {"num_preemptions", "prompt_tokens"}


def test_latencies_come_from_the_requests_of_the_proxy() -> None:
    fold = folded(scrape(30))
    slow = [request(ttft_s=0.6, duration_s=3.6, tokens=31)] * 10
    fold.add(RequestSample(at=second(30), requests=(*[request()] * 90, *slow)))

    reading = read(fold)

    assert reading.ttft is not None
    assert reading.itl is not None
    assert reading.e2e is not None
    assert (reading.ttft.count, reading.ttft.p50, reading.ttft.p95, reading.ttft.over_slo) == (
        100,
        0.1,
        0.6,
        0.1,
    )
    assert reading.itl.p50 == pytest.approx(0.1)
    assert reading.itl.over_slo is None
    assert (reading.e2e.p99, reading.e2e.over_slo) == (3.6, 0.1)


def test_a_stalled_request_is_late_at_once_and_an_abandoned_one_is_not_counted() -> None:
    fold = folded(scrape(30))
    stalled = request("stalled", ttft_s=None, duration_s=9.0, tokens=None)
    gone = request("gave_up", ttft_s=8.0, duration_s=8.0)
    fold.add(RequestSample(at=second(30), requests=(request(), stalled, gone)))

    reading = read(fold)

    assert reading.requests == {"ok": 1, "stalled": 1, "gave_up": 1}
    assert reading.ttft is not None
    assert (reading.ttft.count, reading.ttft.over_slo) == (2, 0.5)


@pytest.mark.parametrize("count", [3, 5000])
def test_counts_the_requests_of_each_group_of_clients(count: int) -> None:
    fold = folded(scrape(30))
    known = replace(request(), client=3, pinned=True)
    for _ in range(count):
        fold.add(RequestSample(at=second(30), requests=(request(), known, replace(known, pinned=False))))

    counts, clients = fold.take_request_counts(second(30)), fold.take_clients()

    assert counts["r0"].total == 3 * count
    assert {client: of.total for client, of in clients["r0"].items()} == {
        ClientBucket(3, pinned=True): count,
        ClientBucket(3, pinned=False): count,
    }
    assert fold.take_clients() == {}


def test_requests_for_unknown_models_are_counted_by_name_and_many_names_need_no_memory() -> None:
    fold = folded(scrape(30))
    refused = replace(request("refused", tokens=None), unknown_model="legal")
    others = (replace(refused, unknown_model=f"m{number}") for number in range(2_000))
    fold.add(RequestSample(at=second(30), requests=(request(), refused, refused, *others)))

    counted = fold.take_unknown_models()["r0"]

    assert (counted["legal"], len(counted)) == (2, 1_000)
    assert fold.take_unknown_models() == {}


def test_a_refusal_is_counted_but_neither_fast_nor_served() -> None:
    fold = folded(scrape(30))
    refused = request("refused", ttft_s=0.002, duration_s=0.002, tokens=None)
    fold.add(RequestSample(at=second(30), requests=(request(), *[refused] * 9)))

    reading = read(fold)

    assert reading.requests == {"ok": 1, "refused": 9}
    assert reading.ttft is not None
    assert reading.e2e is not None
    assert (reading.ttft.count, reading.ttft.p50, reading.e2e.count) == (1, 0.1, 1)
    assert fold.take_request_counts(second(30)) == {
        "r0": replace(count_requests([request()], SLO), refused=9)
    }


@given(
    served_at=st.lists(st.integers(1, 30), max_size=30), refused_at=st.lists(st.integers(1, 30), max_size=30)
)
def test_refusals_never_raise_goodput(served_at: list[int], refused_at: list[int]) -> None:
    def goodput(ok: list[int], refused: list[int]) -> float:
        fold = folded(scrape(30))
        for number in range(31):
            requests = [request()] * ok.count(number)
            turned_away = [request("refused", ttft_s=0.002, duration_s=0.002)] * refused.count(number)
            fold.add(RequestSample(at=second(number), requests=(*requests, *turned_away)))
        return read(fold).goodput_rps or 0.0

    assert goodput(served_at, refused_at) <= goodput(served_at, [])


@given(st.lists(st.sampled_from(get_args(RequestOutcome))), st.integers(0, 20))
def test_every_attempt_is_counted_once(outcomes: list[RequestOutcome], cut: int) -> None:
    requests = [request(outcome) for outcome in outcomes]
    arm = count_requests(requests, FULL_SLO)

    assert count_requests(requests[:cut], FULL_SLO) + count_requests(requests[cut:], FULL_SLO) == arm
    assert arm.asked == len(outcomes)
    assert (arm.refused, arm.gave_up) == (outcomes.count("refused"), outcomes.count("gave_up"))
    assert sum(arm.e2e) == arm.total - arm.errors


STALLED = request("stalled", ttft_s=None, duration_s=60.0, tokens=None)
ANSWERED = request("ok", ttft_s=70.0, duration_s=80.0)


def test_a_stalled_request_that_is_answered_is_late_not_failed() -> None:
    waiting = count_requests([request(), STALLED], FULL_SLO)
    both = waiting + count_requests([replace(ANSWERED, stalled=True)], FULL_SLO)

    assert (waiting.asked, waiting.missed, waiting.stalled, waiting.errors) == (2, 1, 1, 0)
    assert (both.asked, both.missed, both.stalled, both.errors, both.total) == (2, 1, 1, 0, 2)
    assert (sum(both.ttft), both.over_ttft, both.over_e2e) == (2, 1, 1)


def test_a_stalled_request_that_fails_is_an_error_from_then_on() -> None:
    cut = replace(request("failed", ttft_s=None, duration_s=70.0), status=503, stalled=True)
    both = count_requests([STALLED], FULL_SLO) + count_requests([cut], FULL_SLO)

    assert (both.asked, both.missed, both.stalled, both.errors, both.total) == (1, 1, 1, 1, 1)


@given(
    st.lists(
        st.tuples(st.sampled_from([o for o in get_args(RequestOutcome) if o != "stalled"]), st.booleans())
    ),
    st.randoms(use_true_random=False),
)
def test_stalled_requests_never_make_more_bad_requests_than_requests(
    ends: list[tuple[RequestOutcome, bool]], random: Random
) -> None:
    """In any second: a request may stall in one and end in another."""
    seconds: list[list[Request]] = [[], [], []]
    for outcome, stalls in ends:
        at = random.randint(0, 2)
        seconds[at].append(replace(request(outcome), stalled=stalls))
        if stalls:
            seconds[random.randint(0, at)].append(STALLED)
    counted = [count_requests(requests, FULL_SLO) for requests in seconds]

    for arm in (*counted, sum(counted, RequestCounts())):
        assert all(
            0 <= bad <= of for of, bad in (count_missed(arm), *(counts(arm) for counts in STREAMS.values()))
        )
    assert sum(arm.asked for arm in counted) == len(ends)


def test_requests_above_an_objective_are_counted_exactly() -> None:
    requests = [
        request(ttft_s=0.5, duration_s=2.0, tokens=16),  # on the edge of all three
        request(ttft_s=0.51, duration_s=2.01, tokens=16),
        request(ttft_s=0.1, duration_s=1.7, tokens=16),
        request("stalled", ttft_s=None, duration_s=9.0, tokens=None),
        request("truncated", ttft_s=0.6, duration_s=9.0, tokens=2),
        request("gave_up", ttft_s=9.0, duration_s=9.0),
        request("refused", ttft_s=9.0, duration_s=9.0),
    ]
    arm, unpromised = count_requests(requests, FULL_SLO), count_requests(requests)

    assert (arm.over_ttft, arm.over_itl, arm.over_e2e) == (3, 1, 1)
    assert (sum(arm.ttft), sum(arm.itl), sum(arm.e2e)) == (5, 3, 3)
    assert (unpromised.over_ttft, unpromised.over_itl, unpromised.over_e2e) == (0, 0, 0)


@given(
    st.lists(
        st.builds(
            request,
            st.sampled_from(get_args(RequestOutcome)),
            ttft_s=st.none() | st.floats(0, 1),
            duration_s=st.floats(1, 3),
            tokens=st.none() | st.integers(0, 40),
        )
    )
)
def test_late_counts_answered_requests_outside_the_slo(requests: list[Request]) -> None:
    answered = [request for request in requests if request.outcome == "ok"]

    assert count_requests(requests, FULL_SLO).late == sum(
        not meets_slo(request, FULL_SLO) for request in answered
    )


def test_a_failure_without_a_response_counts_as_unreachable() -> None:
    unreached = replace(request("failed", ttft_s=None, duration_s=0.0), status=0)
    answered = replace(unreached, status=503)
    left = replace(unreached, outcome="gave_up")

    arm = count_requests([unreached, answered, left, replace(unreached, outcome="stalled")])

    assert (arm.unreached, arm.errors, arm.total, arm.stalled) == (1, 2, 2, 1)


BUCKETS = Buckets(edges=(0.1, 0.25, 0.75, 2.0), counts=(40, 40, 15, 5, 0), sum=20.0)


def test_without_requests_latencies_are_interpolated_in_the_histograms() -> None:
    ttft = read(folded(*(replace(scrape(n), ttft=BUCKETS) for n in (29, 30)))).ttft

    assert ttft is not None
    assert ttft.count == 200
    assert ttft.p50 == pytest.approx(0.1 + 0.15 * 10 / 40)
    assert ttft.p95 == pytest.approx(0.75)
    assert ttft.over_slo == pytest.approx(0.2)  # read at 0.25, the edge below 0.5


@pytest.mark.parametrize(
    ("buckets", "over"),
    [
        pytest.param(Buckets(edges=(1.0,), counts=(5, 5), sum=9.0), None, id="no edge so low"),
        pytest.param(
            Buckets(edges=(0.5, 1.0), counts=(5, 3, 2), sum=5.0), 0.5, id="an edge on the objective"
        ),
    ],
)
def test_the_share_above_the_objective_is_read_at_an_edge(buckets: Buckets, over: float | None) -> None:
    ttft = read(folded(replace(scrape(30), ttft=buckets))).ttft

    assert ttft is not None
    assert ttft.over_slo == over


def test_above_the_last_edge_a_percentile_is_the_last_edge() -> None:
    ttft = read(folded(replace(scrape(30), ttft=Buckets(edges=(0.5, 1.0), counts=(0, 0, 9), sum=99.0)))).ttft

    assert ttft is not None
    assert (ttft.p50, ttft.p99) == (1.0, 1.0)


def test_histograms_with_other_edges_are_not_added_up() -> None:
    other = Buckets(edges=(1.0,), counts=(7, 7), sum=9.0)

    ttft = read(folded(replace(scrape(29), ttft=other), replace(scrape(30), ttft=BUCKETS))).ttft

    assert ttft is not None
    assert ttft.count == 100


@pytest.mark.parametrize(
    "empty", [Buckets(edges=(1.0,), counts=(0, 0), sum=0.0), Buckets(edges=(), counts=(0,), sum=0.0)]
)
def test_an_empty_histogram_is_no_latency(empty: Buckets) -> None:
    assert read(folded(replace(scrape(30), ttft=empty))).ttft is None


def test_goodput_counts_requests_that_met_every_objective() -> None:
    fold = Aggregator(slo=SLO)
    for number in range(31):
        fold.add(scrape(number))
    late_start, late_end = request(ttft_s=0.6), request(duration_s=2.5)
    unknown = request(ttft_s=None, tokens=None)
    fold.add(
        RequestSample(
            at=second(30), requests=(*[request()] * 59, late_start, late_end, unknown, request("failed"))
        )
    )

    assert read(fold).goodput_rps == pytest.approx(2.0)
    assert read(folded(scrape(30))).goodput_rps is None


def test_goodput_of_a_young_server_is_over_its_own_age() -> None:
    fold = folded(scrape(20), scrape(30))
    fold.add(RequestSample(at=second(30), requests=(request(),) * 20))

    assert read(fold).goodput_rps == pytest.approx(2.0)


def test_a_window_that_holds_the_most_requests_counts_over_the_time_of_these() -> None:
    fold = Aggregator(most=50)
    fold.add(scrape(30))
    for number in range(1, 31):
        fold.add(RequestSample(at=second(number), requests=(request(),) * 10))

    reading = read(fold)

    assert reading.requests == {"ok": 50}
    assert reading.goodput_rps == pytest.approx(50 / 4)


def test_gpus_and_series_are_those_of_the_last_fresh_sample() -> None:
    fold = folded(scrape(1), scrape(60))
    fold.add(GpuSample(at=second(1), gpus=(Gpu(index=0, uuid="GPU-1"),)))
    fold.add(SeriesSample(at=second(1), values={"node_load1": None}))

    assert read(fold, 2).gpus == (Gpu(index=0, uuid="GPU-1"),)
    assert read(fold, 2).series == {"node_load1": None}
    assert (read(fold, 60).gpus, read(fold, 60).series) == ((), {})


def test_facts_are_kept_after_their_last_scrape() -> None:
    first = replace(scrape(1), facts={"version": "0.32.0"})

    assert read(folded(first, scrape(60)), 60).facts == {"version": "0.32.0"}


def test_request_counts_start_at_the_last_call() -> None:
    fold = Aggregator()
    fold.add(RequestSample(at=second(1), requests=(request(), request("failed"), request(server="r1"))))
    first = fold.take_request_counts(second(1))
    fold.add(RequestSample(at=second(2), requests=(request(),)))

    assert (first["r0"].total, first["r0"].errors, first["r1"].total) == (2, 1, 1)
    assert fold.take_request_counts(second(2)) == {"r0": count_requests([request()])}
    assert fold.take_request_counts(second(3)) == {}


@pytest.mark.parametrize(
    ("scrapes", "queued"),
    [
        pytest.param([replace(scrape(9, waiting=5), generation_tokens=3)], 3, id="a queue that advances"),
        pytest.param([replace(scrape(9, waiting=2), generation_tokens=3)], 2, id="no more than wait"),
        pytest.param([replace(scrape(9), generation_tokens=3)], 0, id="none waits"),
        pytest.param([scrape(9, waiting=5)], 0, id="no tokens"),
        pytest.param([replace(scrape(5, waiting=5), generation_tokens=3)], 0, id="stale"),
        pytest.param(
            [replace(scrape(5, waiting=5), prompt_tokens=3), scrape(9, waiting=5)], 0, id="wedged for 5 s"
        ),
        pytest.param([], 0, id="no scrape"),
    ],
)
def test_a_stalled_request_is_queued_only_where_a_queue_advances(
    scrapes: list[EngineSample], queued: int
) -> None:
    stalled = request("stalled", ttft_s=None, duration_s=10.0)
    fold = folded(*scrapes)
    fold.add(RequestSample(at=second(10), requests=(stalled, stalled, stalled, request())))

    counts = fold.take_request_counts(second(10))["r0"]

    assert (counts.total, counts.errors, counts.stalled, counts.queued) == (1, 0, 3, queued)


def test_liveness_has_the_last_state_and_counts_each_scrape_once() -> None:
    busy = replace(
        scrape(2, waiting=3), prompt_tokens=5, generation_tokens=7, prefix_queries=4, prefix_hits=1
    )
    fold = folded(scrape(1, interval_s=0), replace(scrape(1), server="r1"))
    fold.add(RequestSample(at=second(1), requests=(request(server="r2"),)))
    first = fold.take_liveness(second(1))
    fold.add(busy)
    fold.add(replace(busy, at=second(2.5), waiting=1))
    both, again = fold.take_liveness(second(3))["r0"], fold.take_liveness(second(4))["r0"]

    assert set(first) == {"r0", "r1"}
    assert first["r0"] == EngineLiveness(age_s=0, running=4, waiting=0, tokens=None)
    assert both == EngineLiveness(
        age_s=0.5, running=4, waiting=1, tokens=24, generated=14, prefix_queries=8, prefix_hits=2
    )
    assert again == EngineLiveness(age_s=1.5, running=4, waiting=1, tokens=24)


@pytest.mark.parametrize("answers", [False, True])
def test_a_server_with_an_unusable_page_is_not_lost(answers: bool) -> None:
    never, before = folded(), folded(scrape(1))
    gone = SourceState(
        at=second(2), source="vllm_metrics r0", server="r0", available=False, why="no load", answers=answers
    )
    for fold in (never, before):
        fold.add(gone)

        engine = fold.take_liveness(second(9))["r0"]

        assert (engine.lost, engine.unusable) == (not answers, "no load" if answers else "")


def test_liveness_reports_a_restart_once() -> None:
    fold = folded(scrape(1, interval_s=0))
    fold.take_liveness(second(1))
    fold.add(scrape(2))
    fold.add(replace(scrape(3, interval_s=0), restarted=True))
    (after_restart,) = fold.take_liveness(second(3)).values()
    fold.add(scrape(4))
    (later,) = fold.take_liveness(second(4)).values()
    fold.add(scrape(5, interval_s=0))  # the pages before it were refused
    (after_gap,) = fold.take_liveness(second(5)).values()

    assert not after_gap.restarted
    assert (after_restart.restarted, after_restart.tokens) == (True, None)
    assert (later.restarted, later.tokens) == (False, 0)


def test_tokens_that_a_server_does_not_count_are_unknown_not_zero() -> None:
    fold = folded(replace(scrape(2), missing=frozenset({"generation_tokens"})))

    assert fold.take_liveness(second(2))["r0"].tokens is None


def test_unread_liveness_is_bounded() -> None:
    fold = folded(*(scrape(number) for number in range(1000)))

    assert len(fold._servers["r0"].new_samples) == MAX_NEW_SAMPLES


def test_blind_is_the_reason_of_the_lost_request_source() -> None:
    fold, seen = Aggregator(), []
    for source, available in [
        ("nvidia_smi", False),
        (REQUESTS, False),
        ("proxy_requests records", True),
        (REQUESTS, True),
    ]:
        seen.append(fold.blind)
        fold.add(SourceState(at=NOON, source=source, available=available, why="it left"))

    assert [*seen, fold.blind] == ["", "", "proxy_requests: it left", "proxy_requests: it left", ""]


def test_unread_request_counts_are_bounded() -> None:
    fold = Aggregator(most=10)
    fold.add(RequestSample(at=second(1), requests=(request(),) * (PENDING * 2 + 1)))

    assert len(fold._servers["r0"].pending) == 1
    assert fold.take_request_counts(second(1))["r0"].total == PENDING * 2 + 1


def test_a_lost_source_of_no_server_is_no_lost_server() -> None:
    fold = folded(scrape(1))
    fold.add(SourceState(at=second(2), source="prometheus r0", available=False, why="no such query"))
    fold.add(SourceState(at=second(2), source="nvidia_smi", available=False, why="no such command"))

    engines = fold.take_liveness(second(3))

    assert {name: engine.lost for name, engine in engines.items()} == {"r0": False}


def test_old_readings_leave_the_window() -> None:
    fold = Aggregator()
    for number in range(1000):
        fold.add(scrape(number))
        fold.add(RequestSample(at=second(number), requests=(request(),)))

    assert len(fold._servers["r0"].samples) <= 241
    assert len(fold._servers["r0"].requests) <= 241


def test_a_silent_or_retired_server_is_forgotten() -> None:
    fold = folded(scrape(1), replace(scrape(1), server="r1"))
    fold.add(SourceState(at=second(1), source="vllm_metrics r1", server="r1", available=True))
    fold.add(SourceState(at=second(1), source="nvidia_smi", available=True))
    fold.forget("r1")

    assert list(fold._servers) == ["r0"]
    assert list(fold.sources()) == ["nvidia_smi"]

    fold.take_request_counts(second(1000))

    assert not fold._servers


def test_sources_keep_their_last_state_and_are_bounded() -> None:
    fold = Aggregator()
    for number in range(SOURCES + 1):
        fold.add(SourceState(at=second(number), source=f"source {number}", available=True))
    lost = SourceState(at=second(5000), source="source 1", available=False, why="connection refused")
    fold.add(lost)

    assert len(fold.sources()) == SOURCES
    assert "source 0" not in fold.sources()
    assert list(fold.sources().values())[-1] == lost


@pytest.mark.parametrize(
    "broken",
    [
        {"running": nan},
        {"kv_usage": inf},
        {"preemptions": nan},
        {"ttft": Buckets(edges=(1.0,), counts=(nan, 1), sum=1.0)},
        {"itl": Buckets(edges=(1.0,), counts=(1,), sum=1.0)},
    ],
)
def test_a_sample_with_an_invalid_number_is_skipped(broken: dict[str, float]) -> None:
    fold = folded(scrape(29))
    before = read(fold)

    fold.add(replace(scrape(30), **broken))  # type: ignore[arg-type]
    fold.add(RequestSample(at=second(30), requests=(request(duration_s=nan), request(ttft_s=inf))))

    assert read(fold) == before
    assert fold.take_request_counts(second(30)) == {}


@pytest.mark.parametrize("options", [{"span_s": 0.0}, {"fresh_s": -1.0}, {"most": 0}])
def test_rejects_an_empty_window(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Aggregator(**options)  # type: ignore[arg-type]


scrapes = st.builds(
    scrape,
    st.floats(0, 60),
    interval_s=st.floats(0, 40),
    running=st.floats(0, 1000),
    waiting=st.floats(0, 1000),
)


@given(samples=st.lists(scrapes, min_size=1, max_size=40), at_s=st.floats(0, 70))
def test_any_scrapes_make_a_consistent_reading(samples: list[EngineSample], at_s: float) -> None:
    fold, again = folded(*samples), folded(*samples)

    reading = fold.reading("r0", second(at_s))

    assert reading == again.reading("r0", second(at_s))
    if reading is not None:
        assert 0 <= reading.coverage <= 1
        for trend in (reading.running, reading.waiting):
            for mean in (trend.mean, trend.early, trend.late):
                assert trend.low - 1e-6 <= mean <= trend.high + 1e-6


@given(st.lists(st.integers(0, 5), max_size=20))
def test_no_request_is_lost_or_counted_twice(batches: list[int]) -> None:
    fold, total = Aggregator(), RequestCounts()
    for number, size in enumerate(batches):
        fold.add(RequestSample(at=second(number), requests=(request(),) * size))
        if size % 2:
            total += fold.take_request_counts(second(number)).get("r0", RequestCounts())

    total += fold.take_request_counts(second(99)).get("r0", RequestCounts())

    assert total == count_requests([request()] * sum(batches))


def test_incidents_are_in_the_reading_while_in_the_window() -> None:
    fold = folded(*(scrape(at_s) for at_s in range(70)))
    ours = Incident(at=second(20), server="r0", what="oom", why="the kernel killed a process of it")

    fold.add(ours)
    fold.add(replace(ours, server="r1"))

    assert read(fold, 30).incidents == (ours,)
    assert read(fold, 60).incidents == ()
