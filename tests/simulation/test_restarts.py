"""Exhaustive restarts: each story is cut at each journal entry and effect, then resumed."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from flettner.agent.domain import effects as fx
from flettner.agent.domain import events as e
from flettner.agent.machine.step import numbered_effects, state_without_counts
from tests.simulation.history import History, play
from tests.simulation.scenario import POINTS, Act, Scenario
from tests.support.machine_stories import World
from tests.support.sampling import sampled
from tests.unit.machine.test_recovery import STORIES, assert_consistent, settle

WHOLE = {
    "promoted": Scenario(seed=1),
    "rolled back": Scenario(seed=1, green="failing"),
    "swapped": Scenario(seed=1, strategy="swap"),
    "two replaced": Scenario(seed=1, servers=2, strategy="replace", exam=True),
}
CALLS = tuple(kind for kind in POINTS if kind != "keep_alive")
pytestmark = pytest.mark.timeout(600)  # a test plays many histories, next to other streams of tests


@dataclass
class Cut(World):
    """Snapshots the world after each journalled event."""

    cuts: list[tuple["Cut", list[fx.Effect]]] = field(default_factory=list)
    issued: list[fx.Effect] = field(default_factory=list)
    cutting: bool = False

    def feed(self, *events: e.Event) -> "Cut":
        for event in events:
            before, earlier = state_without_counts(self.state), len(self.pending)
            super().feed(event)
            new = numbered_effects(tuple(self.pending[earlier:]))
            self.issued += new
            if self.cutting and (new or state_without_counts(self.state) != before):
                done = {id(effect) for effect in self.performed}
                undone = [effect for effect in self.issued if id(effect) not in done]
                self.cuts.append((self.snapshot(), undone))
        return self

    def snapshot(self) -> "Cut":
        taken = super().snapshot()
        taken.cutting, taken.cuts, taken.issued = False, [], []
        return taken


def cut(story: World) -> Iterator[tuple[Cut, list[fx.Effect]]]:
    snapshot = story.snapshot()
    world = Cut(**{name: getattr(snapshot, name) for name in World.__dataclass_fields__})
    world.cutting = True
    world.start().until("proposed").approve().tick(60)
    yield from world.cuts


@pytest.mark.parametrize("performed", [False, True], ids=["effects lost", "effects done, reply lost"])
@pytest.mark.parametrize("story", STORIES)
def test_recovers_from_a_restart_after_any_journal_entry(story: str, performed: bool) -> None:
    cuts = list(cut(STORIES[story]))
    assert len(cuts) > 5
    for world, open_effects in cuts:
        for effect in open_effects if performed else ():
            world.perform(effect)

        settle(world.start())
        if world.state.rollout is None:  # not approved yet
            assert set(world.running) == world.old
        else:
            assert_consistent(world)


@pytest.mark.parametrize("how", ["crash before", "crash after"])
@pytest.mark.parametrize("story", WHOLE)
def test_recovers_from_a_daemon_crash_at_any_journal_entry(story: str, how: str) -> None:
    entries = play(WHOLE[story]).entries
    assert entries > 12
    for nth in sampled(range(1, entries + 1), 3):
        survives(WHOLE[story], Act(what=how, on="journal", nth=nth))


@pytest.mark.parametrize("how", ["crash before", "crash after", "reply lost"])
@pytest.mark.parametrize("story", WHOLE)
def test_recovers_from_a_daemon_crash_at_any_effect(story: str, how: str) -> None:
    history = History(scenario=WHOLE[story])
    history.run()
    for kind in CALLS:
        for nth in sampled(range(1, history.calls[kind] + 1), 3):
            survives(WHOLE[story], Act(what=how, on=kind, nth=nth))


def survives(scenario: Scenario, act: Act) -> None:
    result = play(replace(scenario, acts=(act,)))
    assert result.violations == [], f"{act}\n" + "\n".join(result.log)
