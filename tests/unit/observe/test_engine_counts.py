"""Request counts from vLLM's metrics: bounds that treat both sides alike."""

from bisect import bisect_left
from collections import Counter
from datetime import UTC, datetime
from random import Random

import pytest

from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.reading import Buckets, EngineSample, SourceState
from flettner.agent.domain.request_counts import RequestSource
from flettner.agent.observe.aggregator import Aggregator
from flettner.agent.observe.engine_counts import EngineCounter, count_over

NOON = datetime(2025, 11, 21, 12, tzinfo=UTC)
EDGES = (0.25, 0.5, 1.0)
SLO = Slo(ttft=Objective(under_s=0.5, share=0.95), e2e=Objective(under_s=0.5, share=0.95))


def buckets(*counts: float) -> Buckets:
    return Buckets(EDGES, counts, 0.0)


def sample(
    finished: dict[str, float],
    ttft: Buckets | None = None,
    e2e: Buckets | None = None,
    answered: dict[str, float] | None = None,
) -> EngineSample:
    return EngineSample(
        at=NOON,
        server="chat-r1",
        interval_s=1.0,
        running=0,
        waiting=0,
        finished=finished,
        ttft=ttft,
        e2e=e2e,
        answered=answered or {},
    )


def test_requests_count_by_how_they_ended() -> None:
    counts = EngineCounter().count(
        sample({"stop": 5, "length": 3, "abort": 1, "error": 2}, answered={"2xx": 9, "4xx": 4, "5xx": 2}), SLO
    )

    assert (counts.total, counts.errors, counts.refused) == (11, 3, 4)


def test_a_request_that_is_late_in_two_objectives_counts_once() -> None:
    counts = EngineCounter().count(sample({"stop": 10}, buckets(4, 2, 4, 0), buckets(0, 7, 1, 2)), SLO)

    assert (counts.over_ttft, counts.over_e2e, counts.late) == (4, 3, 4)


def test_a_late_first_token_counts_at_the_latest_when_its_request_ends() -> None:
    counter = EngineCounter()

    first = counter.count(sample({}, ttft=buckets(0, 0, 3, 0)), SLO)
    last = counter.count(sample({"stop": 3}, e2e=buckets(0, 0, 0, 3)), SLO)

    assert (first.over_ttft, first.late, last.late) == (3, 0, 3)


@pytest.mark.parametrize(
    ("limit_s", "over"),
    [
        (0.1, 60),  # below half of the first edge
        (0.25, 50),
        (0.5, 30),
        (0.5 * 2**0.25, 25),  # a quarter of the bucket from 0.5 to 1.0 s, in octaves
        (0.5 * 2**0.5, 20),
        (1.0, 10),
        (2**0.5, 5),
        (2.5, 0),
    ],
)
def test_a_part_of_a_bucket_is_above_a_limit_inside_it(limit_s: float, over: int) -> None:
    slo = Slo(ttft=Objective(under_s=limit_s, share=0.95))

    counts = EngineCounter().count(sample({"stop": 60}, buckets(10, 20, 20, 10)), slo)

    assert counts.over_ttft == over
    assert sum(counts.ttft) == 60


def test_parts_of_requests_add_up_over_the_scrapes() -> None:
    slo, counter = Slo(ttft=Objective(under_s=0.5 * 2**0.5, share=0.95)), EngineCounter()

    counts = [counter.count(sample({"stop": 1}, buckets(0, 0, 1, 0)), slo) for _ in range(10)]

    assert [part.over_ttft for part in counts] == [0, 1] * 5
    assert [part.late for part in counts] == [0, 1] * 5


@pytest.mark.parametrize("limit_s", [0.3, 0.6, 1.1])
def test_a_slower_server_never_has_fewer_late_requests(limit_s: float) -> None:
    draw = Random(1)  # noqa: S311
    for _ in range(200):
        latencies = [draw.lognormvariate(-0.7, 0.5) for _ in range(40)]
        slower = [latency * draw.uniform(1.0, 1.5) for latency in latencies]

        assert count_over(measured(slower), limit_s) >= count_over(measured(latencies), limit_s)


def measured(latencies: list[float]) -> Buckets:
    counts = Counter(bisect_left(EDGES, latency) for latency in latencies)
    return buckets(*(counts[place] for place in range(len(EDGES) + 1)))


@pytest.mark.parametrize("counted_by", ["proxy", "engine"])
def test_the_aggregator_counts_engines_where_no_proxy_does(counted_by: RequestSource) -> None:
    aggregator = Aggregator(slo=SLO, counted_by=counted_by)

    aggregator.add(sample({"stop": 4}, buckets(4, 0, 0, 0)))
    counts = aggregator.take_request_counts(NOON)

    assert bool(counts) is (counted_by == "engine")
    assert aggregator.take_request_counts(NOON) == {}


def test_a_server_that_cannot_be_read_makes_its_target_blind() -> None:
    aggregator = Aggregator(counted_by="engine")
    aggregator.add(sample({"stop": 4}))

    aggregator.add(
        SourceState(
            at=NOON, source="vllm_metrics chat-r1", server="chat-r1", available=False, why="timed out"
        )
    )
    lost = aggregator.blind
    aggregator.add(SourceState(at=NOON, source="vllm_metrics chat-r1", server="chat-r1", available=True))

    assert lost == "vllm_metrics chat-r1: timed out"
    assert aggregator.blind == ""


@pytest.mark.parametrize(
    ("counted_by", "why"),
    [("proxy", ""), ("access_log", "traffic: drift"), ("engine", "traffic: drift")],
)
def test_a_split_that_is_not_in_force_makes_a_target_behind_a_gateway_blind(
    counted_by: RequestSource, why: str
) -> None:
    aggregator = Aggregator(counted_by=counted_by)
    aggregator.add(SourceState(at=NOON, source="traffic", available=False, why="drift"))

    assert aggregator.blind == why
