"""The journal entries of servers that exit."""

from dataclasses import replace

import pytest

from flettner.agent.audit.entries import build_entry
from flettner.agent.domain.effects import Retire, Stop
from flettner.agent.domain.events import ServerLost
from tests.support.machine_stories import BLUE, World

EXIT = "vllm0 was stopped"


def entry_of_exit(awaiting: Retire | Stop | None) -> tuple[str, str]:
    """Return action and reason of the entry that the exit of blue writes."""
    world = World().start().until("proposed").approve().until("promoting")
    before = replace(world.state, effects=replace(world.state.effects, awaited=awaiting))
    event = ServerLost(at=world.at, server=BLUE.name, why=EXIT, external=True)
    after, _ = world.machine.step(before, event)
    entry = build_entry(before, after, event, ())
    return entry.action, entry.why


@pytest.mark.parametrize("awaiting", [Retire(number=9, server=BLUE), Stop(number=9, server=BLUE)])
def test_a_server_that_flettner_ends_is_not_lost(awaiting: Retire | Stop) -> None:
    assert entry_of_exit(awaiting) == ("server.ended", EXIT)


def test_a_server_that_exits_by_itself_is_lost() -> None:
    assert entry_of_exit(None)[0] == "server.lost"
