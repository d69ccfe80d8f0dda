"""Several causes of late requests: one joint change, and what follows a change that gained nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from flettner.agent.domain.model import Bound, Outcome, OutcomeResult, Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.agent.machine.earlier_outcomes import why_not_again
from flettner.agent.machine.guard import Guard
from flettner.agent.machine.step import Machine
from flettner.vllm_facts.values import ChangeClass, Value
from tests.support.machine_stories import NOON, World, rules

CAP, CACHE, EAGER, BUDGET = (
    "max_num_seqs",
    "enable_prefix_caching",
    "enforce_eager",
    "max_num_batched_tokens",
)
BOUNDS = {CAP: Bound(min=1, max=64, octaves=3)}
PRESENT: Mapping[str, Value] = {BUDGET: 256, "watermark": 0.025}


@dataclass(slots=True)
class Mitigates:
    """Proposes while `on` and while the setting lacks the change."""

    rule: str
    to: Mapping[str, Value]
    klass: ChangeClass = "auto"
    mitigation: bool = True
    on: bool = True

    def propose(self, _: Reading, context: Context) -> tuple[Proposal, ...]:
        if not self.on or self.to.items() <= context.setting.items():
            return ()
        made = Proposal(
            rule=self.rule,
            to=self.to,
            why=f"what {self.rule} saw",
            expects=f"what {self.rule} expects",
            risks="few",
            source="test",
            klass=self.klass,
            mitigation=self.mitigation,
            assumed={knob: PRESENT[knob] for knob in self.to if knob in PRESENT},
        )
        return (made,)


def queue() -> Mitigates:
    return Mitigates("Q1", {CAP: 16})


def prefixes(**changes: object) -> Mitigates:
    return replace(Mitigates("X1", {CACHE: True}), **changes)  # type: ignore[arg-type]


def world(*policies: Mitigates) -> World:
    named = tuple((policy.rule.lower(), policy) for policy in policies)
    return World(machine=Machine(rules(policies=named, guard=Guard(bounds=BOUNDS, cooldown_s=60)))).start()


def changes(story: World) -> list[Mapping[str, Value]]:
    return [suggestion.proposal.to for suggestion in story.state.suggestions.open]


def remember(story: World, *outcomes: Outcome) -> None:
    story.state = replace(story.state, outcomes=outcomes)


def tried(result: OutcomeResult, to: Mapping[str, Value], *, hours_ago: float = 1) -> Outcome:
    return Outcome(at=NOON - timedelta(hours=hours_ago), result=result, to=to, before={}, why="as before")


def test_two_causes_become_one_suggestion_that_names_both() -> None:
    story = world(prefixes(), queue()).until("proposed")

    (made,) = story.state.suggestions.open
    assert dict(made.proposal.to) == {CAP: 16, CACHE: True}
    assert made.proposal.rule == "Q1"
    assert made.proposal.why == "what Q1 saw; and X1 prefix-caching-off: what X1 saw"
    assert made.proposal.expects == "what Q1 expects; what X1 expects"


def test_a_part_that_a_person_must_approve_makes_the_change_gated_but_stays_apart_in_auto_mode() -> None:
    both = {CAP: 16, CACHE: True}
    story = world(queue(), prefixes(klass="gated")).until("proposed")
    assert (changes(story), story.state.suggestions.open[0].proposal.klass) == ([both], "gated")

    alone = world(queue(), prefixes(klass="gated"))
    alone.state = replace(alone.state, mode="auto")

    assert alone.until("launching").state.canary.suggestion.proposal.to == {CAP: 16}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(prefixes(mitigation=False), id="an optimisation"),
        pytest.param(Mitigates("ACME-1", {CACHE: True}), id="a rule that names no cause of its own"),
    ],
)
def test_other_changes_stay_apart(other: Mitigates) -> None:
    story = world(queue(), other).until("proposed").tick(40)

    assert {CAP: 16} in changes(story)
    assert {CAP: 16, CACHE: True} not in changes(story)


def test_two_remedies_of_one_cause_stay_apart() -> None:
    story = world(Mitigates("K1", {"watermark": 0.05}), Mitigates("K1", {CAP: 2})).until("proposed").tick(40)

    assert sorted(map(str, changes(story))) == [str({CAP: 2}), str({"watermark": 0.05})]


def test_a_second_cause_extends_an_open_suggestion_at_once() -> None:
    late = prefixes(on=False)
    story = world(queue(), late).until("proposed")
    assert changes(story) == [{CAP: 16}]

    late.on = True
    story.tick(10)

    assert changes(story) == [{CAP: 16, CACHE: True}]
    assert story.ended("chat-s1").notes[-1] == "chat-s2 takes its place"


def test_a_cause_that_is_absent_for_a_while_does_not_split_it_again() -> None:
    late = prefixes()
    story = world(queue(), late).until("proposed")

    late.on = False
    assert changes(story.tick(100)) == [{CAP: 16, CACHE: True}]
    story.tick(100)

    assert changes(story) == [{CAP: 16}]


def test_a_change_that_gained_nothing_alone_is_tried_with_the_other_cause() -> None:
    story = world(queue(), prefixes())
    remember(story, tried("no_gain", {CACHE: True}))

    assert changes(story.until("proposed")) == [{CAP: 16, CACHE: True}]


def test_the_next_cause_has_its_turn_after_a_change_that_gained_nothing() -> None:
    """P1 yields to Q1, which is still seen, but of no use."""
    story = world(queue(), Mitigates("P1", {BUDGET: 512}))
    remember(story, tried("no_gain", {CAP: 16}))

    assert changes(story.until("proposed")) == [{CAP: 16, BUDGET: 512}]


def test_it_comes_alone_where_both_together_gained_nothing_either() -> None:
    story = world(queue(), Mitigates("P1", {BUDGET: 512}), Mitigates("G1", {EAGER: False}))
    remember(story, tried("no_gain", {CAP: 16, EAGER: False}))

    assert changes(story.until("proposed")) == [{CAP: 16, EAGER: False, BUDGET: 512}]


@pytest.mark.parametrize("result", ["denied", "rolled_back", "refused"])
def test_another_end_leaves_the_order_of_the_rules(result: OutcomeResult) -> None:
    story = world(queue(), Mitigates("P1", {BUDGET: 512}))
    remember(story, tried(result, {CAP: 16}))

    assert changes(story.tick(60)) == []


def test_a_change_that_gained_nothing_is_tried_again_after_a_promotion() -> None:
    before = tried("no_gain", {CACHE: True}, hours_ago=3)
    promoted = tried("promoted", {CAP: 16}, hours_ago=2)
    after = tried("no_gain", {CACHE: True}, hours_ago=1)

    def refused(*outcomes: Outcome) -> bool:
        return bool(why_not_again(outcomes, {CACHE: True}, NOON))

    assert refused(before)
    assert not refused(before, promoted)
    assert refused(before, promoted, after)


def outcomes_in_turn(results: Sequence[OutcomeResult]) -> tuple[Outcome, ...]:
    return tuple(tried(result, {CACHE: True}, hours_ago=9 - n) for n, result in enumerate(results))


def test_a_promotion_excuses_no_change_that_was_worse() -> None:
    worse = outcomes_in_turn(("rolled_back",))

    assert why_not_again((*worse, tried("promoted", {CAP: 16})), {CACHE: True}, NOON)
