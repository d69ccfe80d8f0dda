"""An approval outside of the windows: kept until they open, or refused with the time."""

from dataclasses import dataclass, replace
from typing import Literal
from zoneinfo import ZoneInfo

import pytest

from flettner.agent.config.windows import parse_period
from flettner.agent.domain.events import Approved, Event
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.windows import Schedule, Windows
from flettner.agent.machine.proposing import approve
from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.machine_stories import rules
from tests.unit.api.conftest import Client, get, post


@dataclass
class ClosedDaemonView(FakeDaemonView):
    """The machine's approval at noon, while the windows open at midnight."""

    outside: Literal["wait", "refuse"] = "wait"

    def _after(self, state: State, event: Event) -> State:
        night = Schedule(
            zone=ZoneInfo("UTC"), allowed=(parse_period("daily 00:00-05:00"),), outside=self.outside
        )
        assert isinstance(event, Approved)
        return approve(replace(rules(), windows=Windows((night,))), state, event)[0]


@pytest.fixture
def daemon() -> ClosedDaemonView:
    return ClosedDaemonView()


async def test_an_approval_that_waits_is_shown_and_can_be_repeated(
    client: Client, daemon: ClosedDaemonView
) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    path, body = f"/v1/suggestions/{made.id}/approve", {"digest": made.digest}

    first, second = await post(client, path, body), await post(client, path, body)

    assert first == second
    assert (first[0], first[1]["status"], first[1]["approved_by"]) == (200, "open", "operator ann")
    assert daemon.targets()["chat"].state.phase is Phase.PROPOSED
    assert len(daemon.records(0, 10)) == 1
    target = await get(client, "/v1/targets/chat")
    assert (target["suggestion"], target["suggestions"]) == (None, []), "it needs no approval any more"


async def test_where_it_is_refused_the_answer_has_the_time(client: Client, daemon: ClosedDaemonView) -> None:
    daemon.outside = "refuse"
    made = daemon.suggest({"max_num_seqs": 128})

    status, problem = await post(client, f"/v1/suggestions/{made.id}/approve", {"digest": made.digest})

    assert (status, problem["type"]) == (409, "urn:flettner:problem:not-taken")
    assert "they open: Sat 2026-11-21 00:00 UTC; approve it then" in problem["detail"]
