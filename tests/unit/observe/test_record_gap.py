"""Where vLLM has answered more requests than the gateway recorded, nothing counts."""

from datetime import timedelta

import pytest

from flettner.agent.domain.reading import EngineSample, Request, RequestSample
from flettner.agent.domain.request_counts import RequestSource
from flettner.agent.observe.aggregator import LEAST, Aggregator, RecordGap
from tests.unit.observe.test_engine_counts import NOON, SLO


def scrape(second: int, answered: int, server: str = "chat-r1") -> EngineSample:
    return EngineSample(
        at=NOON + timedelta(seconds=second),
        server=server,
        interval_s=1.0,
        running=0,
        waiting=0,
        answered={"2xx": answered, "5xx": 0},
        finished={"stop": 3 * answered},  # requests of several answers
    )


def records(second: int, count: int, server: str = "chat-r1") -> RequestSample:
    request = Request(server=server, outcome="ok", status=200, duration_s=0.2, ttft_s=0.1)
    return RequestSample(at=NOON + timedelta(seconds=second), requests=(request,) * count)


def played(*, rate: int, recorded: float, seconds: int, late_s: int = 2) -> Aggregator:
    aggregator = Aggregator(slo=SLO, counted_by="access_log")
    for second in range(seconds):
        aggregator.add(scrape(second, rate))
        if second >= late_s:
            aggregator.add(records(second, round(rate * recorded)))
    return aggregator


@pytest.mark.parametrize(("rate", "late_s"), [(1, 2), (20, 2), (20, 4)])
def test_records_that_come_seconds_later_are_no_gap(rate: int, late_s: int) -> None:
    aggregator = played(rate=rate, recorded=1.0, seconds=60, late_s=late_s)

    assert aggregator.blind == ""


def test_a_load_that_doubles_is_no_gap() -> None:
    aggregator = played(rate=20, recorded=1.0, seconds=30)
    for second in range(30, 60):
        aggregator.add(scrape(second, 40))
        aggregator.add(records(second, 20 if second < 32 else 40))

        assert aggregator.blind == ""


@pytest.mark.parametrize("rate", [1, 20])
@pytest.mark.parametrize("recorded", [0.0, 0.5])
def test_a_gateway_whose_records_are_lost_is_named(rate: int, recorded: float) -> None:
    aggregator = played(rate=2 * rate, recorded=recorded, seconds=60)

    assert "the gateway recorded only" in aggregator.blind
    assert "chat-r1" in aggregator.blind


def test_a_gap_is_over_when_its_seconds_are() -> None:
    aggregator = played(rate=20, recorded=0.0, seconds=10)
    before = aggregator.blind
    for second in range(10, 42):
        aggregator.add(scrape(second, 20))
        aggregator.add(records(second, 20))

    assert before
    assert aggregator.blind == ""


def test_a_few_requests_by_another_way_are_no_gap() -> None:
    gap = RecordGap()
    gap.add_scrape(scrape(0, LEAST))

    assert gap.describe() == ""


@pytest.mark.parametrize("counted_by", ["proxy", "engine"])
def test_the_proxy_and_the_engine_need_no_check(counted_by: RequestSource) -> None:
    aggregator = Aggregator(slo=SLO, counted_by=counted_by)
    for second in range(30):
        aggregator.add(scrape(second, 20))

    assert aggregator.blind == ""


def test_the_gaps_between_tokens_are_of_the_engine_and_all_else_of_the_records() -> None:
    aggregator = played(rate=4, recorded=1.0, seconds=10, late_s=0)

    counts = aggregator.take_request_counts(NOON + timedelta(seconds=10))["chat-r1"]

    assert counts.total == 40
    assert sum(counts.ttft) == 40
