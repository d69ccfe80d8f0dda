"""Arrivals are counted before the requests end; a limit is exceeded only beyond what bursts explain."""

from collections.abc import Iterable
from itertools import repeat

import pytest

from flettner.agent.domain.load_watch import BIN_S, LoadWatch, count_open

TAKES_S = 20  # that a request takes


def watched(arrivals: Iterable[int], *, peak_s: int = 0) -> LoadWatch:
    """Each request ends TAKES_S after it came; the first `peak_s` are under the load of a peak."""
    watch, came = LoadWatch(), [0] * TAKES_S
    for second, count in enumerate(arrivals):
        came.append(count)
        watch = watch.add(came[-TAKES_S - 1], sum(came[-TAKES_S:]), tested=second < peak_s)
    return watch


def test_requests_count_when_they_come_and_not_when_they_end() -> None:
    watch = watched([6] * 60 + [14] * 10)

    assert sum(watch.arrived[-10:]) == 140
    assert sum(watch.arrived) == 140 + 20 * 6


def test_scrapes_that_are_older_than_the_records_do_not_add_requests() -> None:
    watch = LoadWatch()
    for second in range(41):
        watch = watch.add(6, 120 + 30 * (second % 2), tested=False)

    assert sum(watch.arrived) == 6 * 30
    assert min(watch.arrived) < 0


def test_a_steady_load_that_doubles_is_seen_within_ten_seconds() -> None:
    assert watched([7] * 300).find_excess(9.2) is None
    assert watched([7] * 300 + [14] * 6).find_excess(9.2) is None
    assert watched([7] * 300 + [14] * 10).find_excess(9.2) == (140, 10)


def test_bursts_as_before_are_no_return_of_the_load() -> None:
    bursts = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 14, 14, 14, 14, 14, 14, 14, 14, 14, 14] * 20

    assert watched(bursts).burstiness > 20
    assert watched(bursts).find_excess(9.2) is None
    assert watched(bursts + [50] * 10).find_excess(9.2) is not None


def test_a_load_that_grows_slowly_is_no_burst() -> None:
    growing = [second // 60 for second in range(600)]

    assert watched(growing).burstiness == pytest.approx(1.0, abs=0.2)


def test_as_long_as_the_bursts_are_not_known_more_is_needed() -> None:
    assert watched([14] * 12).find_excess(9.2) is None
    assert watched([20] * 12).find_excess(9.2) == (200, 10)


def test_far_more_open_requests_than_under_the_peak_are_a_backlog() -> None:
    usual = [6] * 300

    assert watched(usual, peak_s=300).find_backlog() is None
    assert watched(usual + [14] * 40, peak_s=300).find_backlog() == (280.0, 120.0)
    assert watched(usual + [14] * 40).find_backlog() is None  # no peak was seen


def test_nothing_is_said_while_the_open_requests_of_a_server_are_not_known() -> None:
    watch = watched([14] * 300, peak_s=300).add(14, None, tested=False)

    assert (watch.arrived, watch.opened, watch.open) == ((), (), None)
    assert watch.find_excess(1.0) is None
    assert watch.most_open == 280.0
    for _ in repeat(None, BIN_S):
        watch = watch.add(14, 280, tested=False)
    assert len(watch.arrived) == BIN_S - 1


@pytest.mark.parametrize(
    ("loads", "count"),
    [([(4.0, 1.0), (3.0, 0.0)], 8), ([(4.0, 1.0), None], None), ([], None)],
)
def test_open_requests_are_of_all_servers(loads: list[tuple[float, float] | None], count: int | None) -> None:
    assert count_open(loads) == count
