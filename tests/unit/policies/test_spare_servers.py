"""N2: fewer servers are proposed where the lower end of the headroom carries the peak of a week."""

from dataclasses import replace
from datetime import timedelta

import pytest

from flettner.agent.domain.headroom import Headroom
from flettner.agent.domain.model import SERVERS, Objective, Outcome, OutcomeResult, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.performance_model.band import Band
from flettner.policies.conformance.readings import NOON, a_reading, late
from flettner.policies.spare_servers import SpareServers

BUSY = a_reading(running=6.0)
SLO = Slo(ttft=Objective(under_s=0.5, share=0.95))
HEADROOM = Headroom(
    made_at=NOON,
    capacity_rps=Band(value=24.0, low=20.0, high=28.0),
    share=0.95,
    peak_rps=8.0,
    hours=168,
    servers=4,
    enough=2,
    saved_per_hour=5.0,
    certain_rps=6.0,
    recorded_rps=4.0,
)


def outcome(result: OutcomeResult, servers: int, days: float) -> Outcome:
    return Outcome(at=NOON - timedelta(days=days), result=result, to={SERVERS: servers})


def proposed(
    headroom: Headroom | None, *outcomes: Outcome, servers: int = 4, reading: Reading = BUSY
) -> object:
    context = Context(setting={}, slo=SLO, headroom=headroom, servers=servers, outcomes=outcomes)
    return [dict(made.to) for made in SpareServers().propose(reading, context)]


def test_the_proposal_says_peak_capacity_and_price() -> None:
    context = Context(setting={}, slo=SLO, headroom=HEADROOM, servers=4)

    (made,) = SpareServers().propose(BUSY, context)

    assert (made.rule, made.klass, dict(made.to)) == ("N2", "gated", {SERVERS: 2})
    assert "the last 7 days had 8 requests/s, and 2 of 4 servers keep the SLO at 95% up to 10" in made.why
    assert made.expects == "2 fewer servers to pay for, 2.5 an hour each"
    assert made.saving is not None
    assert (made.saving.peak_rps, made.saving.server_rps) == (8.0, 5.0)


@pytest.mark.parametrize(
    ("headroom", "servers"),
    [
        pytest.param(None, 4, id="no saving is wanted"),
        pytest.param(replace(HEADROOM, peak_rps=12.1), 4, id="the peak is above 80 % of three servers"),
        pytest.param(replace(HEADROOM, hours=143), 4, id="less than six days are known"),
        pytest.param(replace(HEADROOM, certain_rps=None), 4, id="the capacity is a guess"),
        pytest.param(replace(HEADROOM, certain_rps=2.6), 4, id="the law is of smaller steps than three have"),
        pytest.param(replace(HEADROOM, recorded_rps=3.9), 4, id="the load of a night"),
    ],
)
def test_nothing_is_proposed(headroom: Headroom | None, servers: int) -> None:
    assert proposed(headroom, servers=servers) == []


def test_servers_are_spared_as_far_as_the_law_is_certain() -> None:
    smaller = replace(HEADROOM, extrapolation="the rate is 2.5 times the recorded one", certain_rps=2.7)

    assert proposed(smaller) == [{SERVERS: 3}]


def test_nothing_is_proposed_while_an_objective_is_missed() -> None:
    assert proposed(HEADROOM, reading=replace(BUSY, ttft=late(0.5))) == []


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        pytest.param(outcome("undecided", 2, 0.9), [], id="a saving ended today"),
        pytest.param(outcome("undecided", 2, 1.1), [{SERVERS: 2}], id="one ended yesterday"),
        pytest.param(outcome("rolled_back", 2, 9.0), [{SERVERS: 3}], id="two were late"),
        pytest.param(outcome("promoted", 2, 0.1), [{SERVERS: 2}], id="one is in force"),
    ],
)
def test_earlier_savings_count(earlier: Outcome, expected: object) -> None:
    assert proposed(HEADROOM, earlier) == expected
