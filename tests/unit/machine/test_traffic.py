"""The traffic behind forecasts and baselines: the rate of steady minutes, and counts without gaps."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from flettner.agent.domain.events import Observed
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.reading import EngineSample, Request, RequestSample
from flettner.agent.domain.request_counts import NO_REQUESTS
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.traffic import expected_rate, recent_traffic, remember_traffic, select_usual
from flettner.agent.observe.aggregator import Aggregator
from tests.support.machine_stories import BLUE, NOON

E2E_S = 40


@dataclass
class Site:
    """Blue, its aggregator, and clients whose requests take E2E_S seconds; arrivals are even in time."""

    servers: int = 1
    state: State = field(init=False)
    fold: Aggregator = field(default_factory=Aggregator)
    at: datetime = NOON
    due: float = 0.0
    open: list[datetime] = field(default_factory=list)

    def __post_init__(self) -> None:
        peers = tuple(replace(BLUE, name=f"peer{n}") for n in range(self.servers - 1))
        self.state = State(
            target="chat",
            phase=Phase.OBSERVING,
            fleet=Fleet(servers=(BLUE, *peers)),
        )

    def run(self, seconds: int, rps: float, phase: Phase = Phase.OBSERVING) -> "Site":
        """`rps`: of each server."""
        for _ in range(seconds):
            self.at += timedelta(seconds=1)
            self.state = replace(self.state, phase=phase)
            self.due += rps
            new, self.due = int(self.due), self.due % 1
            ended = [at for at in self.open if self.at - at >= timedelta(seconds=E2E_S)]
            self.open = [at for at in self.open if at not in ended] + [self.at] * new
            self.fold.add(RequestSample(at=self.at, requests=tuple(self._requests(len(ended)))))
            self.fold.add(
                EngineSample(
                    at=self.at,
                    server=BLUE.name,
                    interval_s=1.0,
                    running=len(self.open),
                    waiting=0.0,
                    finished={"stop": float(len(ended))},
                )
            )
            self.state = remember_traffic(
                self.state,
                Observed(
                    at=self.at,
                    reading=self.fold.reading(BLUE.name, self.at),
                    arms=self.fold.take_request_counts(self.at),
                ),
            )
        return self

    def _requests(self, count: int) -> Iterator[Request]:
        for server in (BLUE, *self.state.fleet.servers[1:]):
            yield from [Request(server=server.name, outcome="ok", status=200, duration_s=E2E_S)] * count

    @property
    def rate(self) -> float:
        rate = expected_rate(self.state, self.at)
        assert rate is not None
        return rate


def test_requests_that_have_not_ended_yet_belong_to_the_rate() -> None:
    """No request of the first 40 s has ended: counts of ended ones show a ramp."""
    site = Site().run(90, 4.0)
    ended, seconds = recent_traffic(site.state, site.at)

    assert ended.asked / seconds < 3
    assert site.rate == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("earlier", [0.0, 1.0], ids=["the first load", "after a night"])
def test_a_load_that_began_seconds_ago_has_its_rate(earlier: float) -> None:
    """Neither the idle time before nor the requests that ended by now say what comes."""
    site = Site().run(300, earlier).run(900, 0.0).run(12, 6.0)

    assert site.rate == pytest.approx(6.0, rel=0.1)
    assert site.run(20, 6.0).rate == pytest.approx(6.0, rel=0.1)
    assert site.run(300, 6.0).rate == pytest.approx(6.0, rel=0.05)


def test_a_few_requests_after_an_idle_time_are_no_rate() -> None:
    site = Site().run(600, 0.02).run(200, 0.0)
    before = site.rate

    assert site.run(12, 0.25).rate == pytest.approx(before, rel=0.3)


def test_a_ramp_does_not_change_the_rate_until_it_has_ended() -> None:
    site = Site().run(300, 2.0)
    for step in range(1, 9):
        site.run(5, 2.0 + 1.5 * step)
    assert site.rate == pytest.approx(2.0, rel=0.3)
    site.run(120, 14.0)

    assert site.rate == pytest.approx(14.0, rel=0.05)


def test_the_minutes_after_a_rollback_do_not_change_the_rate() -> None:
    """Blue had half of the traffic, and gets all of it again."""
    site = Site().run(300, 4.0)
    site.run(300, 2.0, Phase.CANARY).run(20, 2.0, Phase.ROLLING_BACK).run(10, 4.0, Phase.COOLDOWN)
    assert site.rate == pytest.approx(4.0, rel=0.05)
    site.run(240, 4.0, Phase.COOLDOWN)

    assert site.rate == pytest.approx(4.0, rel=0.05)


def test_a_rate_that_changed_during_a_rollout_is_measured_after_it() -> None:
    site = Site().run(300, 4.0).run(300, 5.0, Phase.CANARY).run(200, 10.0)

    assert site.rate == pytest.approx(10.0, rel=0.05)


def test_the_rate_is_that_of_all_servers() -> None:
    assert Site(servers=3).run(120, 4.0).rate == pytest.approx(12.0, rel=0.05)


def test_the_counts_of_the_last_minutes_are_of_the_seconds_that_they_cover() -> None:
    """The minute before a rollout had only begun; it is not taken for a full one afterwards."""
    site = Site().run(302, 4.0).run(300, 2.0, Phase.CANARY).run(100, 4.0, Phase.COOLDOWN)
    counts, seconds = recent_traffic(site.state, site.at)

    assert 60 <= seconds <= 100
    assert counts.asked / seconds == pytest.approx(4.0, rel=0.25)


def test_a_restart_of_the_daemon_begins_the_counts_anew() -> None:
    site = Site().run(300, 4.0)
    site.at += timedelta(hours=3)
    site.run(30, 4.0)
    _, seconds = recent_traffic(site.state, site.at)

    assert seconds < 30


def test_a_clock_that_was_set_back_leaves_no_negative_time() -> None:
    site = Site().run(30, 4.0)

    assert recent_traffic(site.state, site.at - timedelta(hours=1))[1] == 0.0


@pytest.mark.parametrize(
    ("phase", "usual"),
    [(Phase.OBSERVING, ["chat-r0"]), (Phase.LAUNCHING, []), (Phase.CANARY, []), (Phase.PROMOTING, [])],
)
def test_what_a_rollout_does_to_blue_is_not_taken_for_chance(phase: Phase, usual: list[str]) -> None:
    state = State(target="chat", fleet=Fleet(servers=(BLUE,)), phase=phase)

    assert list(select_usual(state, {"chat-r0": NO_REQUESTS, "chat-r9": NO_REQUESTS})) == usual
