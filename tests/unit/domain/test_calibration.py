"""Dispersion of equal servers, compared with a reference computation and on streams of known dispersion."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import ceil, sqrt
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flettner.agent.audit.records import DAEMON, GENESIS, JournalEntry, encode_line, parse_record, parse_state
from flettner.agent.domain.calibration import (
    KEPT_TICKS,
    LEAST_TICKS,
    LENGTHS,
    STREAMS,
    TICK_S,
    Calibration,
    CalibrationWindow,
)
from flettner.agent.domain.events import Observed
from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.reading import Request, RequestSample
from flettner.agent.domain.request_counts import EMPTY, RequestCounts
from flettner.agent.machine.step import state_without_counts, state_without_recent
from flettner.agent.machine.traffic import STEADY_TICKS
from flettner.agent.observe.aggregator import Aggregator
from tests.support.machine_stories import World

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
Counted = tuple[int, str, int, int]  # tick, server, requests, bad


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def make_counts(requests: int, bad: int) -> RequestCounts:
    return RequestCounts(total=requests, errors=bad)


def window_of(counted: Iterable[Counted]) -> CalibrationWindow:
    steadiness = CalibrationWindow()
    for tick, server, requests, bad in counted:
        steadiness.add(at(tick * TICK_S), {server: make_counts(requests, bad)})
    return steadiness


def calibrate(counted: Iterable[Counted], *, ticks: int) -> Calibration:
    """Return the calibration of errors after `ticks`."""
    return window_of(counted).calibrations(at(ticks * TICK_S))["errors"]


def plain_dispersion(counted: Iterable[Counted], length: int, *, ticks: int) -> float:
    """Compute by the formulas of Pearson and von Neumann; 1 below five degrees of freedom."""
    base = int(NOON.timestamp()) // TICK_S
    blocks: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
    for tick, server, requests, bad in counted:
        number = (base + tick) // length
        if number < (base + ticks) // length and number * length >= base + ticks - KEPT_TICKS and requests:
            had, had_bad = blocks[number].get(server, (0, 0))
            blocks[number][server] = had + requests, had_bad + bad
    numbered = {number: list(row.values()) for number, row in blocks.items()}
    rows = list(numbered.values())
    of, bad = sum(n for row in rows for n, _ in row), sum(k for row in rows for _, k in row)
    if not 0 < bad < of:
        return 1.0
    usual, freedom = bad / of, sum(len(row) - 1 for row in rows)
    if freedom >= 5:
        shares = [sum(k for _, k in row) / sum(n for n, _ in row) for row in rows]
        chi = sum((k - n * p) ** 2 / n for row, p in zip(rows, shares, strict=True) for n, k in row)
        return chi / (usual * (1 - usual)) / freedom
    whole = {number: (sum(n for n, _ in row), sum(k for _, k in row)) for number, row in numbered.items()}
    pairs = [(whole[number], whole[number + 1]) for number in whole if number + 1 in whole]
    if len(pairs) < 5:
        return 1.0
    apart = sum((k / n - j / m) ** 2 / (1 / n + 1 / m) for (n, k), (m, j) in pairs)
    phi = apart / (usual * (1 - usual)) / len(pairs)
    return 1 + (phi - 1) * (1 + sqrt(2 * phi / bad))


def plain(counted: list[Counted], *, ticks: int) -> Calibration:
    valid = [entry for entry in counted if entry[2] >= 5 and entry[0] >= ticks - KEPT_TICKS]
    shares = sorted(bad / requests for _, _, requests, bad in valid)
    edge = shares[ceil(0.85 * len(shares)) - 1]
    above = [(tick, server, 1, int(bad / requests > edge)) for tick, server, requests, bad in valid]
    return Calibration(
        phi=max(1.0, *(plain_dispersion(counted, length, ticks=ticks) for length in LENGTHS)),
        tick_edge=edge,
        tick_share=sum(bad for *_, bad in above) / len(above),
        tick_phi=max(1.0, *(plain_dispersion(above, length, ticks=ticks) for length in LENGTHS)),
        tick_requests=sum(requests for _, _, requests, _ in valid) / len(valid),
        ticks=len(valid),
    )


def stream(
    seed: int, *, ticks: int, servers: int, most: int = 40, clumped: float = 0.0, drift: bool = False
) -> Iterator[Counted]:
    """2 % of requests are bad; 60 % in a share `clumped` of a server's minutes; `drift`: all worsen."""
    random = Random(seed)  # noqa: S311
    ill: dict[tuple[int, int], bool] = {}
    for tick in range(ticks):
        usual = 0.02 + (0.2 * tick / ticks if drift else 0.0)
        for server in range(servers):
            clump = ill.setdefault((server, tick // 4), random.random() < clumped)
            requests = random.randint(most // 2, most)
            bad = sum(random.random() < (0.6 if clump else usual) for _ in range(requests))
            yield tick, f"r{server}", requests, bad


@settings(deadline=None)
@given(
    seed=st.integers(0, 1000),
    ticks=st.integers(1, 1500),
    servers=st.integers(1, 3),
    most=st.sampled_from([1, 6, 12]),
    clumped=st.sampled_from([0.0, 0.1]),
)
def test_the_calibration_equals_the_textbook_formula(
    seed: int, ticks: int, servers: int, most: int, clumped: float
) -> None:
    counted = list(stream(seed, ticks=ticks, servers=servers, most=most, clumped=clumped))
    valid = [entry for entry in counted if entry[2] >= 5 and entry[0] >= ticks - KEPT_TICKS]

    calibration = window_of(counted).calibrations(at(ticks * TICK_S)).get("errors")

    assert (calibration is None) is (len(valid) < LEAST_TICKS)
    if calibration is not None:
        expected = plain(counted, ticks=ticks)
        assert (calibration.tick_edge, calibration.ticks) == (expected.tick_edge, expected.ticks)
        assert calibration.phi == pytest.approx(expected.phi, abs=1e-3)
        assert calibration.tick_phi == pytest.approx(expected.tick_phi, abs=1e-3)
        assert calibration.tick_share == pytest.approx(expected.tick_share, abs=1e-4)
        assert calibration.tick_requests == pytest.approx(expected.tick_requests, abs=0.06)


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_independent_requests_have_a_design_effect_near_one(servers: int) -> None:
    results = [calibrate(stream(seed, ticks=960, servers=servers, most=20), ticks=960) for seed in range(5)]

    assert 1.0 <= median(result.phi for result in results) < 1.4
    assert 1.0 <= median(result.tick_phi for result in results) < 1.4
    assert all(0.03 < result.tick_share <= 0.15 for result in results)


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_clustered_failures_have_a_large_design_effect(servers: int) -> None:
    assert calibrate(stream(2, ticks=960, servers=servers, clumped=0.05), ticks=960).phi > 10


def test_common_incidents_cancel_and_slow_drift_nearly_cancels() -> None:
    """The drift is 2 to 22 % in four hours; a dispersion over time would be 90."""
    several = calibrate(stream(3, ticks=960, servers=4, drift=True), ticks=960)
    alone = calibrate(stream(3, ticks=960, servers=1, drift=True), ticks=960)

    assert several.phi < 1.7
    assert alone.phi < 5


def test_a_calibration_needs_twenty_ticks_with_five_requests() -> None:
    counted = [(tick, "r0", 4 if tick % 2 else 5, 1) for tick in range(39)]

    assert window_of(counted).calibrations(at(38 * TICK_S)) == {}
    assert calibrate(counted, ticks=39).ticks == LEAST_TICKS


def test_a_tick_that_has_not_ended_is_not_counted() -> None:
    counted = [(tick, "r0", 10, 0) for tick in range(21)]

    assert calibrate(counted, ticks=20).ticks == 20
    assert calibrate(counted, ticks=21).ticks == 21


def test_seconds_of_a_tick_add_up() -> None:
    steadiness = CalibrationWindow()
    for second in range(20 * TICK_S):
        steadiness.add(at(second), {"r0": make_counts(1, int(second % TICK_S == 0)), "r1": RequestCounts()})

    calibration = steadiness.calibrations(at(20 * TICK_S))["errors"]

    assert (calibration.ticks, calibration.tick_requests, calibration.tick_edge) == (20, 15.0, 1 / 15)


def test_four_hours_are_kept() -> None:
    steadiness = window_of((tick, "r0", 10, 5) for tick in range(KEPT_TICKS))
    for tick in range(KEPT_TICKS, 2 * KEPT_TICKS + 81):
        steadiness.add(at(tick * TICK_S), {"r1": make_counts(10, 0)})
    calibration = steadiness.calibrations(at((2 * KEPT_TICKS + 81) * TICK_S))["errors"]
    later = steadiness.calibrations(at(4 * KEPT_TICKS * TICK_S))

    assert calibration == Calibration(
        phi=1, tick_edge=0, tick_share=0, tick_phi=1, tick_requests=10, ticks=KEPT_TICKS
    )
    assert later == {}
    assert not steadiness._streams["errors"].ordered
    assert not any(blocks.ended for blocks in steadiness._streams["errors"].blocks)


def test_each_stream_is_counted_by_its_own_metric() -> None:
    seven = (7, *EMPTY[1:])
    each = RequestCounts(
        total=10,
        errors=1,
        stalled=5,
        stalled_ended=2,
        gave_up=2,
        refused=3,
        over_ttft=4,
        over_itl=5,
        over_e2e=6,
        ttft=seven,
        itl=seven,
        e2e=seven,
    )

    assert {name: counts_of(each) for name, counts_of in STREAMS.items()} == {
        "errors": (10, 1),
        "stalled": (13, 5),
        "gave_up": (15, 2),
        "refused": (18, 3),
        "ttft": (7, 4),
        "itl": (7, 5),
        "e2e": (7, 6),
    }


def test_a_clock_set_back_loses_no_counts() -> None:
    steadiness = window_of((tick, "r0", 10, 1) for tick in range(20))
    steadiness.add(at(0), {"r0": make_counts(10, 1)})

    calibration = steadiness.calibrations(at(20 * TICK_S))["errors"]

    assert (calibration.ticks, calibration.tick_requests) == (20, 10.5)


OLD = Calibration(phi=2.5, tick_edge=0.1, tick_share=0.1, tick_phi=1.5, tick_requests=40.0, ticks=3000)


def stored_calibration(world: World, *calibrations: Calibration) -> Calibration:
    for calibration in calibrations:
        world.feed(Observed(at=world.at, calibration={"ttft": calibration}))
    return world.state.traffic.calibration["ttft"]


@pytest.mark.parametrize(
    ("ticks", "is_kept"), [(20, False), (STEADY_TICKS - 1, False), (STEADY_TICKS, True), (4000, True)]
)
def test_the_first_minutes_of_a_new_process_do_not_displace_hours(ticks: int, is_kept: bool) -> None:
    new = replace(OLD, phi=1.0, ticks=ticks)

    assert stored_calibration(World().start().tick(1), OLD, new) == (new if is_kept else OLD)


def test_the_machine_keeps_the_latest_calibration_of_each_stream() -> None:
    world = World().start().tick(1)
    world.feed(Observed(at=world.at, calibration={"errors": OLD}))

    assert stored_calibration(world, replace(OLD, ticks=20), replace(OLD, ticks=24)).ticks == 24
    assert world.state.traffic.calibration["errors"] == OLD


def test_a_new_calibration_alone_is_not_recorded_and_a_recorded_one_can_be_read() -> None:
    before = World().start().tick(1).state
    after = replace(before, traffic=replace(before.traffic, calibration={"ttft": OLD}))
    entry = JournalEntry(at=NOON, actor=DAEMON, action="target.observed", target="chat", state=after)

    line = encode_line(entry, seq=1, prev=GENESIS, boot_id="", host="")

    assert (state_without_counts(after), state_without_recent(after)) == (
        state_without_counts(before),
        state_without_recent(before),
    )
    assert parse_state(parse_record(line)) == after


def folded(fold: Aggregator, *, minutes: int) -> Iterator[dict[str, Calibration]]:
    """Yield the calibrations of each second, with one request per second."""
    request = Request(server="r0", outcome="ok", status=200, duration_s=1.0, ttft_s=0.1, tokens=10)
    for second in range(minutes * 60):
        fold.add(RequestSample(at=at(second), requests=(request,)))
        yield fold.calibrate(at(second), fold.take_request_counts(at(second)))


def test_the_aggregator_reports_each_stream_with_an_objective_once_a_minute() -> None:
    fold = Aggregator(slo=Slo(ttft=Objective(under_s=0.5, share=0.95)))

    reports = [report for report in list(folded(fold, minutes=7))[6 * 60 :] if report]

    assert sorted(name for report in reports for name in report) == [
        "errors",
        "gave_up",
        "refused",
        "stalled",
        "ttft",
    ]
    assert all(len(report) == 1 for report in reports)


def test_the_aggregator_reports_no_calibration_in_the_first_minutes() -> None:
    assert not any(folded(Aggregator(), minutes=5))


def test_the_calibration_of_a_stream_is_rounded() -> None:
    result = calibrate(stream(4, ticks=100, servers=2), ticks=100)

    assert result == replace(result, phi=round(result.phi, 3), tick_share=round(result.tick_share, 4))


def test_minutes_in_which_the_fleet_misses_its_slo_are_not_counted() -> None:
    """A queue makes all requests late together; shorter pauses are what the calibration is for."""
    random = Random(5)  # noqa: S311

    def window(late_ticks: Iterable[int]) -> CalibrationWindow:
        late, steadiness = set(late_ticks), CalibrationWindow()
        for tick in range(300):
            bad = 40 if tick in late else sum(random.random() < 0.02 for _ in range(40))
            arm = RequestCounts(total=40, late=bad, over_ttft=bad, ttft=(40, *EMPTY[1:]))
            steadiness.add(at(tick * TICK_S), {"r0": arm})
        return steadiness

    calm = window(()).calibrations(at(300 * TICK_S))["ttft"]
    overloaded = window(range(100, 180)).calibrations(at(300 * TICK_S))["ttft"]
    paused = window(range(10, 300, 60)).calibrations(at(300 * TICK_S))["ttft"]

    assert calm.phi < 2
    assert overloaded.phi < 2
    assert overloaded.ticks == 220
    assert paused.phi > 10
    assert paused.ticks == 300
    assert window(range(300)).calibrations(at(300 * TICK_S)) == {}
