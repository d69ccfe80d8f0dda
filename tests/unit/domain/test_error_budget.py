"""Burn rates of the error budget and their alarms."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.agent.audit.records import DAEMON, GENESIS, JournalEntry, encode_line, parse_record, parse_state
from flettner.agent.domain.error_budget import SLOT_S, WINDOWS, Budget, Burn
from flettner.agent.domain.model import Objective, Proposal, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading, Request, RequestOutcome
from flettner.agent.domain.request_counts import RequestCounts, count_requests
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.step import Machine, state_without_counts, state_without_recent
from tests.support.machine_stories import RaiseSeqs, World, rules

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SLO = Slo(ttft=Objective(under_s=0.5, share=0.95), e2e=Objective(under_s=9.0, share=0.9), errors=0.99)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def budget_after(*minutes: tuple[float, RequestCounts], budget: Budget | None = None) -> Budget:
    budget = budget or Budget()
    for minute, arm in minutes:
        budget = budget.add(at(minute), [arm])
    return budget


def steady(arm: RequestCounts, *, since: int, until: int) -> Budget:
    return budget_after(*((minute, arm) for minute in range(since, until)))


def by_window(budget: Budget, minute: float, slo: Slo = SLO) -> Mapping[str, Burn]:
    return {burn.window: burn for burn in budget.burns(slo, at(minute))}


def test_a_burn_rate_is_the_bad_share_over_the_allowed_one_of_the_worst_objective() -> None:
    budget = budget_after(
        (0, RequestCounts(total=1000, errors=20, over_ttft=200, over_itl=900, over_e2e=100))
    )

    assert budget.burns(SLO, at(1))[0] == Burn(window="5m", objective="ttft", rate=4.0, bad=200, of=1000)


def test_an_overload_that_fails_no_request_burns_no_budget_of_errors() -> None:
    """129 of 193 requests waited for longer than the sensor's limit, and all were answered."""
    promised = Slo(ttft=Objective(under_s=0.5, share=0.95), errors=0.999)
    stalled = [_request("stalled", None, 61.0)] * 129
    answered = [_request("ok", 61.0 + n, 70.0 + n, stalled=True) for n in range(129)]
    late = [_request("ok", 20.0, 30.0)] * 64
    budget = budget_after(
        *((n, count_requests(requests, promised)) for n, requests in enumerate((late, stalled, answered)))
    )
    errors = Slo(errors=0.999)

    assert by_window(budget, 3, promised)["5m"] == Burn(
        window="5m", objective="ttft", rate=20.0, bad=193, of=193
    )
    assert by_window(budget, 3, errors)["5m"] == Burn(
        window="5m", objective="errors", rate=0.0, bad=0, of=193
    )


def _request(
    outcome: RequestOutcome, ttft_s: float | None, duration_s: float, *, stalled: bool = False
) -> Request:
    return Request(
        server="r0", outcome=outcome, status=200, ttft_s=ttft_s, duration_s=duration_s, stalled=stalled
    )


def test_every_second_of_all_servers_adds_up() -> None:
    first, other = RequestCounts(total=30, errors=1), RequestCounts(total=70, gave_up=50, refused=50)
    budget = Budget().add(at(0), [first, other]).add(at(1), [first]).add(at(2), [])

    assert by_window(budget, 2)["5m"] == Burn(window="5m", objective="errors", rate=1.538, bad=2, of=130)


def test_counts_older_than_a_window_are_excluded() -> None:
    bad, good = RequestCounts(total=100, errors=100), RequestCounts(total=100)
    budget = budget_after((0, bad), (20, good), (50, good), (58, good))

    burns = by_window(budget, 60)

    assert {name: (burn.bad, burn.of) for name, burn in burns.items()} == {
        "5m": (0, 100),
        "30m": (0, 200),
        "1h": (100, 400),
        "6h": (100, 400),
    }


def test_too_few_requests_give_no_burn_rate() -> None:
    budget = budget_after((0, RequestCounts(total=19, errors=19)))

    assert budget.burns(SLO, at(0)) == ()
    assert budget_after((1, RequestCounts(total=1)), budget=budget).burns(SLO, at(1))


def test_an_objective_that_allows_nothing_has_no_budget() -> None:
    budget = budget_after((0, RequestCounts(total=100, errors=100)))

    assert budget.burns(Slo(errors=1.0), at(0)) == ()
    assert budget.alarm(Slo(errors=1.0), at(20)) == ""


def test_six_hours_are_kept_in_few_numbers() -> None:
    budget = steady(RequestCounts(total=1_000, errors=10), since=0, until=3 * 24 * 60)

    burns = by_window(budget, 3 * 24 * 60)

    assert len(budget.slots) <= 12 + 1 + 12
    assert 330_000 <= burns["6h"].of <= 360_000
    assert 60_000 <= burns["1h"].of <= 65_000
    assert {round(burn.rate, 9) for burn in burns.values()} == {1.0}


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(1, 50)), max_size=60), st.integers(0, 60))
def test_windows_hold_the_counts_of_their_time(counts: list[tuple[int, int]], later: int) -> None:
    counts = sorted(counts)
    budget = budget_after(*((minute, RequestCounts(total=count)) for minute, count in counts))
    now = max((minute for minute, _ in counts), default=0) + later

    for name, slots in WINDOWS.items():
        window = by_window(budget, now).get(name)
        span = slots * SLOT_S // 60
        begin = now // 5 * 5 - span
        counted = sum(count for minute, count in counts if minute >= begin)
        least = sum(count for minute, count in counts if minute >= begin + (30 if name == "6h" else 0))
        assert (window.of if window else 0) <= counted
        assert window is not None or least < 20
        assert window is None or window.of >= least


def test_a_clock_set_back_continues_in_the_latest_slot() -> None:
    budget = budget_after((60, RequestCounts(total=20)), (0, RequestCounts(total=20)))

    assert [slot[1] for slot in budget.slots] == [40]


def alarm(*minutes: tuple[int, int, RequestCounts], now: float, slo: Slo = SLO) -> str:
    """`minutes`: (since, until, counts of each minute)."""
    every = [(minute, arm) for since, until, arm in minutes for minute in range(since, until)]
    return budget_after(*every).alarm(slo, at(now))


GOOD, LATE = RequestCounts(total=30), RequestCounts(total=30, over_ttft=29)


def test_a_fast_burn_over_both_windows_is_reported_with_its_numbers() -> None:
    assert alarm((0, 60, LATE), now=60) == (
        "the error budget burns at least 14.4 times too fast: at least 72 % of the requests of the last 1 h "
        "and of the last 5 min had their first token late; the SLO allows 5 %"
    )


def test_a_slower_burn_takes_six_hours() -> None:
    text = alarm((0, 360, RequestCounts(total=30, errors=3)), now=360)

    assert "burns at least 6 times too fast: at least 6 % of the requests of the last 6 h" in text
    assert text.endswith("of the last 30 min failed; the SLO allows 1 %")


@pytest.mark.parametrize(
    ("minutes", "now"),
    [
        pytest.param([(0, 3, LATE)], 3, id="less is remembered than the short window"),
        pytest.param([(0, 360, GOOD), (360, 365, LATE)], 365, id="a few bad minutes"),
        pytest.param([(0, 50, LATE), (50, 90, GOOD)], 90, id="it is over"),
        pytest.param([(0, 60, GOOD)], 60, id="all is well"),
        pytest.param([(0, 60, LATE)], 200, id="nobody asks any more"),
        pytest.param([], 60, id="nobody has asked"),
    ],
)
def test_no_alarm_without_a_burn_in_both_windows(
    minutes: list[tuple[int, int, RequestCounts]], now: int
) -> None:
    assert alarm(*minutes, now=now) == ""


def test_a_young_history_that_is_longer_than_the_short_window_is_enough() -> None:
    assert "14.4 times" in alarm((0, 11, LATE), now=11)


def test_both_windows_must_burn_on_the_same_objective() -> None:
    failing = RequestCounts(total=300, errors=90)

    assert alarm((0, 55, LATE), (55, 66, failing), now=66, slo=Slo(ttft=SLO.ttft, errors=0.9)) == ""


def count_all_requests(world: World) -> int:
    return sum(slot[1] for slot in world.state.budget.slots)


def test_the_machine_counts_all_servers_in_all_phases() -> None:
    world, expected = World().start(), 0
    phases = set()
    for second in range(120):
        expected += 10 * sum(weight > 0 for weight in world.tick().weights.values())
        phases.add(world.state.phase)
        if second == 10:
            world.approve()

    assert {Phase.OBSERVING, Phase.PROPOSED, Phase.CANARY, Phase.PROMOTING} <= phases
    assert count_all_requests(world) == expected


def test_counts_alone_are_not_recorded_and_recorded_counts_can_be_read() -> None:
    before = World().start().tick(1).state
    after = replace(before, budget=budget_after((0, LATE), (70, LATE)))
    entry = JournalEntry(at=NOON, actor=DAEMON, action="target.observed", target="chat", state=after)

    line = encode_line(entry, seq=1, prev=GENESIS, boot_id="", host="")

    assert (state_without_counts(after), state_without_recent(after)) == (
        state_without_counts(before),
        state_without_recent(before),
    )
    assert parse_state(parse_record(line)) == after


def test_a_server_overloaded_from_the_start_gets_a_mitigation() -> None:
    """The queue rule is a mitigation; an optimisation is deferred, and one note reports it."""
    slo = Slo(ttft=Objective(under_s=0.5, share=0.95))
    gain = RaiseSeqs()

    @dataclass(frozen=True)
    class Relief:
        def propose(self, reading: Reading, context: Context) -> tuple[Proposal, ...]:
            return tuple(replace(proposal, mitigation=True) for proposal in gain.propose(reading, context))

    held, relieved = (
        World(
            machine=Machine(rules(slo=slo, policies=(("admission", policy),))),
            state=State(target="chat", budget=steady(LATE, since=-20, until=0)),
            at=NOON,
            silent=True,
        )
        for policy in (gain, Relief())
    )
    held.start().tick(60)
    relieved.start().until("proposed")

    notes = {state.note for state in held.states}
    assert held.state.phase is Phase.OBSERVING
    assert (
        len(
            [
                note
                for note in notes
                if note.startswith("Q1 queue-cap-too-low is held back: the error budget burns")
            ]
        )
        == 1
    )
