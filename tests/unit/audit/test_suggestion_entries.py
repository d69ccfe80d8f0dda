"""The journal entries of several open suggestions, and the history and the notices that follow from them."""

from dataclasses import dataclass, replace
from typing import Literal
from zoneinfo import ZoneInfo

import pytest

from flettner.agent.audit.entries import build_entry
from flettner.agent.audit.history import History
from flettner.agent.audit.records import Actor
from flettner.agent.config.windows import parse_period
from flettner.agent.domain import events as e
from flettner.agent.domain.windows import Schedule, Windows
from flettner.agent.machine.step import Machine, state_without_counts
from flettner.agent.notify.rules import notices_of_record
from tests.support.machine_stories import World, rules
from tests.support.proposals import Says


@dataclass
class RecordedWorld(World):
    """A world that keeps the entries."""

    def __post_init__(self) -> None:
        self.entries: list[tuple[str, Actor, str]] = []
        self.history = History()
        self.notices: dict[str, str] = {}

    def feed(self, *events: e.Event) -> World:
        for event in events:
            before = self.state
            super().feed(event)
            if self.state.suggestions.ended or self.state.suggestions.open != before.suggestions.open:
                entry = build_entry(before, self.state, event, ())
                self.entries.append((entry.action, entry.actor, str(entry.after.get("suggestion", ""))))
                self.history.add_state(self.state)
                for notice in notices_of_record(entry.action, self.state, event.at):
                    self.notices.setdefault(notice.id, f"{notice.title} | {notice.text}")
        return self


def story(mode: str = "approve") -> tuple[RecordedWorld, Says, Says]:
    queue, graphs = Says("Q1", {"max_num_seqs": 8}), Says("G1", {"enforce_eager": False})
    world = RecordedWorld(machine=Machine(rules(policies=(("queue", queue), ("graphs", graphs)))))
    if mode == "auto":
        world.mode = "auto"
    world.start()
    return world, queue, graphs


def statuses(world: RecordedWorld) -> dict[str, str]:
    return {suggestion.id: suggestion.status for suggestion in world.history.suggestions()}


def test_each_is_made_once_and_all_stay_open() -> None:
    world, _, _ = story()
    world.tick(10)

    made = [entry for entry in world.entries if entry[0] == "suggestion.made"]
    assert made == [
        ("suggestion.made", Actor(kind="policy", id="queue"), "chat-s1"),
        ("suggestion.made", Actor(kind="policy", id="graphs"), "chat-s2"),
    ]
    assert statuses(world) == {"chat-s1": "open", "chat-s2": "open"}
    assert [name for name in world.notices if name.startswith("suggestion.waiting")] == [
        "suggestion.waiting/chat-s1",
        "suggestion.waiting/chat-s2",
    ]


def test_an_approval_is_of_the_approved_one_and_supersedes_the_other() -> None:
    world, _, _ = story()
    world.tick(10)
    second = world.state.suggestions.open[1]

    world.feed(e.Approved(at=world.at, actor="alice", suggestion=second.id, digest=second.digest))

    assert world.entries[-1] == ("suggestion.approved", Actor(kind="person", id="alice"), "chat-s2")
    assert statuses(world) == {"chat-s1": "superseded", "chat-s2": "approved"}
    assert world.notices["suggestion.decided/chat-s1"] == (
        "chat: suggestion chat-s1 was superseded | "
        "chat-s2 was approved; what is still useful is suggested again"
    )


def test_a_denial_is_of_the_denied_one_while_the_other_stays_open() -> None:
    world, _, _ = story()
    world.tick(10)

    world.feed(e.Denied(at=world.at, actor="bob", suggestion="chat-s1", reason="no"))

    assert world.entries[-1] == ("suggestion.denied", Actor(kind="person", id="bob"), "chat-s1")
    assert statuses(world) == {"chat-s1": "denied", "chat-s2": "open"}


def test_a_withdrawal_names_the_policy_and_the_reason() -> None:
    world, queue, _ = story()
    world.tick(10)

    queue.on = False
    world.tick(130)

    assert world.entries[-1] == ("suggestion.withdrawn", Actor(kind="policy", id="queue"), "chat-s1")
    assert statuses(world) == {"chat-s1": "withdrawn", "chat-s2": "open"}
    assert world.notices["suggestion.decided/chat-s1"] == (
        "chat: suggestion chat-s1 was withdrawn | chat-s1 is withdrawn: no policy has proposed it for 120 s"
    )


def test_a_start_by_itself_is_of_the_mode() -> None:
    world, _, _ = story()
    world.tick(10)
    world.mode = "auto"

    world.start().until("launching", 5)

    assert world.entries[-1][0] == "suggestion.approved"
    assert world.entries[-1][1].kind == "auto"


@pytest.mark.parametrize(("outside", "action"), [("wait", "approval.kept"), ("refuse", "approval.refused")])
def test_an_approval_outside_of_the_windows_starts_nothing_and_the_entry_says_so(
    outside: Literal["wait", "refuse"], action: str
) -> None:
    opens = parse_period("Tue 12:10-13:00")
    windows = Windows((Schedule(zone=ZoneInfo("UTC"), allowed=(opens,), outside=outside),))
    world = RecordedWorld(machine=Machine(replace(rules(), windows=windows)))
    world.start().until("proposed")
    before = world.state
    (shown,) = before.suggestions.open
    approved = e.Approved(at=world.at, actor="alice", suggestion=shown.id, digest=shown.digest)
    world.feed(approved)
    alice = Actor(kind="person", id="alice")

    entry = build_entry(before, world.state, approved, ())
    assert (entry.action, entry.actor) == (action, alice)
    if outside == "wait":
        world.tick(700)
        assert world.entries[-1] == ("suggestion.approved", alice, shown.id)


def test_the_comparison_of_a_change_that_others_applied_is_an_entry() -> None:
    world = World().start().until("observing")
    before, result = world.state, e.AppliedChangeCompared(at=world.at, why="the servers are not worse")
    world.feed(result)
    entry = build_entry(before, world.state, result, ())

    assert state_without_counts(world.state) != state_without_counts(before)
    assert (entry.action, entry.why) == ("change.compared", "the servers are not worse")
