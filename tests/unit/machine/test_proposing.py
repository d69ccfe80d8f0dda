"""Choice of the suggestion among several proposals, and the notes on the rest."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from flettner.agent.domain.events import ChangeAsked
from flettner.agent.domain.model import Mode, Proposal
from flettner.agent.domain.ports import Context, Policy
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.state import Phase
from flettner.agent.machine.step import Machine
from flettner.policies.static_findings import StaticFindings
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import Value
from tests.support.machine_stories import BLUE, World, rules
from tests.support.proposals import Says

QUEUE, THRASH = Says("Q1", {"max_num_seqs": 16}), Says("K1", {"max_num_seqs": 2})
TOO_FAR = Says("M1", {"max_num_seqs": 128})  # outside the bounds
EAGER, HEAT = Says("G1", {"enforce_eager": False}), Says("T1", {}, klass="note")


def world(*policies: Says) -> World:
    named = tuple((policy.rule.lower(), policy) for policy in policies)
    return World(machine=Machine(rules(policies=named))).start()


def test_the_most_urgent_proposal_is_suggested_in_any_policy_order() -> None:
    for policies in ((EAGER, QUEUE), (QUEUE, EAGER)):
        suggestion = world(*policies).until("proposed").state.suggestions.open[0]

        assert (suggestion.proposal.rule, suggestion.policy) == ("Q1", "q1")


def test_a_finding_on_the_flags_is_suggested_after_what_was_measured() -> None:
    finding = Finding(
        rule="A1", klass="auto", severity="warning", why="1", source="test", to={"async_scheduling": True}
    )
    blue = replace(BLUE, setting={**BLUE.setting, "async_scheduling": False})

    def proposed_rules(*policies: tuple[str, Policy]) -> list[str]:
        machine = Machine(rules(policies=(("static_findings", StaticFindings()), *policies)))
        site = World(machine=machine, running={blue.name: blue}, findings=(finding,))
        state = site.start().until("proposed").state
        return [suggestion.proposal.rule for suggestion in state.suggestions.open]

    assert proposed_rules() == ["CL1"]
    assert proposed_rules(("q1", QUEUE)) == ["Q1"]


def test_the_next_proposal_is_suggested_if_the_guard_refuses_the_first() -> None:
    story = World(machine=Machine(rules(policies=(("q1", Says("Q1", {"max_num_seqs": 4})), ("g1", EAGER)))))

    suggestion = story.start().until("proposed").state.suggestions.open[0]

    assert suggestion.proposal.rule == "G1"


def test_nothing_is_suggested_while_a_gpu_throttles_and_a_note_reports_it() -> None:
    held = world(QUEUE, THRASH, EAGER, TOO_FAR, HEAT).tick(3)

    assert held.state.phase is Phase.OBSERVING
    assert held.state.suggestions.pending == ()
    assert held.state.note == (
        "T1 gpu-throttles (advice): what T1 expects; "
        "M1 memory-share-too-low yields to T1 gpu-throttles: every change waits while a GPU throttles; "
        "K1 requests-preempted yields to T1 gpu-throttles: every change waits while a GPU throttles"
    )


def test_an_outranked_rule_is_not_suggested_in_place_of_a_refused_one() -> None:
    same = Says("K1", {"max_num_seqs": 4})  # the current value

    quiet = world(QUEUE, same).tick(3)

    assert quiet.state.suggestions.pending == ()
    assert quiet.state.note.startswith("K1 requests-preempted is held back: max_num_seqs=4 changes nothing")
    assert "Q1 queue-cap-too-low yields to K1" in quiet.state.note


INADMISSIBLE: dict[str, tuple[Mapping[str, Value], str]] = {
    "code": ({"trust_remote_code": True}, "[targets.bounds.trust_remote_code] under `allowed`"),
    "network": ({"host": "0.0.0.0"}, "[targets.bounds.host] under `allowed`"),  # noqa: S104 - never bound
    "unknown": ({"imagine": "evil:latest"}, "[targets.bounds.imagine] under `allowed`"),
    "with a good one": ({"max_num_seqs": 8, "api_key": "mine"}, "a change of api_key was requested"),
    "text": ({"max_num_seqs": "8"}, 'max_num_seqs="8" was requested: max_num_seqs is a whole number'),
    "switch": ({"max_num_seqs": True}, "max_num_seqs=true was requested: max_num_seqs is a whole number"),
    "fraction": ({"max_num_seqs": 8.5}, "max_num_seqs=8.5 was requested: max_num_seqs is a whole number"),
    "negative": ({"max_num_seqs": -5}, "max_num_seqs=-5 was requested: max_num_seqs is at least 1"),
}


@pytest.mark.parametrize("case", INADMISSIBLE)
@pytest.mark.parametrize("mode", ["approve", "auto"])
def test_a_policy_is_held_to_the_same_limits_as_an_operator(case: str, mode: Mode) -> None:
    to, why = INADMISSIBLE[case]
    odd = World(machine=Machine(rules(policies=(("odd", Says("ODD-1", to)),))), mode=mode).start().tick(5)
    story = World(waiting=0).start().tick()
    story.feed(ChangeAsked(at=story.at, actor="mallory", to=to, reason="because"))

    for refused in (odd, story):
        assert why in refused.state.note
        assert (refused.state.phase, refused.state.suggestions.pending) == (Phase.OBSERVING, ())
    assert odd.state.note.startswith("ODD-1 is held back: ")


def test_a_policy_cannot_speak_as_an_operator() -> None:
    posing = world(Says("person", {"max_num_seqs": 16})).tick(5)

    assert posing.state.suggestions.pending == ()
    assert posing.state.note == "person is held back: the rule person is reserved for what operators ask for"


def test_the_rule_named_by_a_note_changes_at_most_once_a_minute() -> None:
    @dataclass(frozen=True, slots=True)
    class Flaps:
        def propose(self, reading: Reading, _: Context) -> tuple[Proposal, ...]:
            return Says("C2" if reading.at.second % 2 else "K3", {}, klass="note").propose(reading, _)

    flapping = World(machine=Machine(rules(policies=(("flaps", Flaps()),)))).start().tick(121)

    notes = [state.note for state in flapping.states if "(advice)" in state.note]
    changes = [note for before, note in pairwise(notes) if before != note]
    assert notes
    assert len(changes) <= 3


def test_a_rule_that_is_held_back_no_longer_leaves_the_note() -> None:
    @dataclass(slots=True)
    class Once:
        seconds: int = 5

        def propose(self, reading: Reading, context: Context) -> tuple[Proposal, ...]:
            self.seconds -= 1
            return Says("C2", {}, klass="note").propose(reading, context) if self.seconds > 0 else ()

    once = World(machine=Machine(rules(policies=(("once", Once()),)))).start().tick(4)
    assert "(advice)" in once.state.note

    assert once.tick(61).state.note == ""


def test_policies_receive_the_served_model() -> None:
    seen: list[str] = []

    @dataclass(frozen=True, slots=True)
    class Looks:
        def propose(self, _: Reading, context: Context) -> tuple[Proposal, ...]:
            seen.append(context.config.model.name if context.config and context.config.model else "")
            return ()

    named = (("looks", Looks()),)
    server = replace(BLUE, setting={"model": "Qwen/Qwen3-8B"})
    World(machine=Machine(rules(policies=named)), running={BLUE.name: server}).start().tick(1)
    World(machine=Machine(rules(policies=named))).start().tick(1)

    assert set(seen) == {"Qwen/Qwen3-8B", ""}


def test_a_persons_proposal_says_what_is_known_of_the_knob_and_what_was_meant() -> None:
    site = world()
    site.feed(ChangeAsked(at=site.at, actor="ann", to={"max_num_seq": 16}, reason="more"))
    assert "did you mean max_num_seqs?" in site.state.note

    site.feed(ChangeAsked(at=site.at, actor="ann", to={"max_num_seqs": 16}, reason="more"))
    (made,) = site.state.suggestions.pending
    assert made.proposal.expects.startswith("max_num_seqs: ")
    assert "raising it: " in made.proposal.expects
