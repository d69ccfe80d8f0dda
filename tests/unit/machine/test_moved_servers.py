"""Servers and manifests of other owners: what they do is accepted, what is theirs is left to them."""

from dataclasses import replace

import pytest

from flettner.agent.domain import events as e
from flettner.agent.domain.model import PreflightResult
from flettner.agent.domain.state import Phase
from tests.support.machine_stories import World

GREEN = "chat-r1"


def promoted(moved: str) -> World:
    world = World(moved=moved).start().until("proposed").approve().until("promoting").until("observing")
    assert [server.name for server in world.state.fleet.running] == [GREEN]
    return world


def proposed_to_commit() -> World:
    """A suggestion for servers whose manifest a GitOps controller writes."""
    return World(preflight=PreflightResult(owner="Argo CD", patch="- op: test")).start().until("proposed")


def test_a_change_to_commit_is_held_and_not_started() -> None:
    world = proposed_to_commit().approve()

    assert world.state.phase is Phase.PROPOSED
    assert [suggestion.preflight.patch for suggestion in world.state.suggestions.open] == ["- op: test"]


def test_a_committed_change_ends_its_suggestion() -> None:
    world = proposed_to_commit()
    [suggestion] = world.state.suggestions.open
    name, server = next(iter(world.running.items()))

    world.running[name] = replace(server, setting={**server.setting, **suggestion.proposal.to})
    world.start()

    ended = world.ended(suggestion.id)
    assert (ended.status, ended.notes[-1]) == ("superseded", "a third party has made this change")
    assert world.state.rollout is None


@pytest.mark.parametrize("moved", [GREEN, ""], ids=["moved", "not moved"])
def test_a_server_that_its_owner_stops_is_not_started_by_us(moved: str) -> None:
    world = promoted(moved)

    world.running.pop(GREEN)
    world.feed(e.ServerLost(at=world.at, server=GREEN, why="was scaled to 0 by a third party", external=True))

    assert (world.state.phase is Phase.RESTORING) == (not moved)


def test_a_server_that_its_owner_starts_again_serves_again() -> None:
    world = promoted(GREEN)
    server = world.running.pop(GREEN)
    world.feed(e.ServerLost(at=world.at, server=GREEN, why="was scaled to 0 by a third party", external=True))

    world.running[GREEN] = server
    world.start().tick(3)

    assert [running.name for running in world.state.fleet.running] == [GREEN]
    assert world.weights == {GREEN: 100}
