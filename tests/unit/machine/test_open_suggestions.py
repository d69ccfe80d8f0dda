"""Policies are asked while suggestions are open: these are ranked, refreshed, superseded or withdrawn."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from flettner.agent.domain import events as e
from flettner.agent.domain.model import Forecast, Objective, Plan, PreflightResult, Slo
from flettner.agent.domain.reading import Latency
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine.evidence import burns_fast
from flettner.agent.machine.step import Machine
from flettner.vllm_facts.values import Value
from tests.support.machine_stories import NOON, PLAN, CountingJudge, World, reading, rules
from tests.support.proposals import Says


@dataclass(frozen=True, slots=True)
class Forecasting(CountingJudge):
    """Forecasts by the request rate alone."""

    def forecast(self, plan: Plan, **facts: object) -> Forecast | None:  # type: ignore[override]
        del plan
        rate = facts["rate_rps"]
        if not getattr(facts["recent"], "asked", 0) or not isinstance(rate, float):
            return None
        return Forecast(rate_rps=rate, usual_s=1000 / rate, likely_s=2000 / rate, hold_s=60.0)


def world(*policies: Says, **changes: object) -> World:
    named = tuple((policy.rule.lower(), policy) for policy in policies)
    return World(machine=Machine(rules(policies=named, **changes))).start()


def ids(state: State) -> list[str]:
    return [suggestion.id for suggestion in state.suggestions.open]


def changes(state: State) -> list[Mapping[str, Value]]:
    return [suggestion.proposal.to for suggestion in state.suggestions.open]


def queue(to: int = 8) -> Says:
    return Says("Q1", {"max_num_seqs": to})


def graphs() -> Says:
    return Says("G1", {"enforce_eager": False})


def test_a_cause_must_be_seen_in_two_windows() -> None:
    @dataclass(slots=True)
    class Slow(World):
        def tick(self, seconds: int = 1) -> World:
            for _ in range(seconds):
                self.at += timedelta(seconds=1)
                self.feed(e.Observed(at=self.at, reading=replace(reading(self.at), span_s=30)))
            return self

    slow = Slow(machine=Machine(rules(policies=(("q1", queue()),)))).start()

    assert slow.tick(30).state.phase is Phase.OBSERVING
    assert slow.state.note == "Q1 queue-cap-too-low is held back: its cause must last for a second window"
    assert slow.tick(1).state.phase is Phase.CHECKING


def test_a_flicker_does_not_restart_the_windows_and_a_longer_gap_does() -> None:
    for gap, phase in ((4, Phase.CHECKING), (6, Phase.OBSERVING)):
        rule = queue()
        story = World(machine=Machine(rules(policies=(("q1", rule),)))).start()

        def tick(seconds: int, story: World = story) -> None:
            for _ in range(seconds):
                story.at += timedelta(seconds=1)
                story.feed(e.Observed(at=story.at, reading=replace(reading(story.at), span_s=30)))

        tick(20)
        rule.on = False
        tick(gap)
        rule.on = True
        tick(30 - 19 - gap)

        assert story.state.phase is phase


def test_a_window_with_a_change_of_load_is_neither_the_first_nor_evidence_of_absence() -> None:
    rule = queue()
    story = world(rule)

    def tick(seconds: int, shift: str, span_s: float = 30) -> None:
        for _ in range(seconds):
            story.at += timedelta(seconds=1)
            seen = replace(reading(story.at), span_s=span_s, shift=shift)
            story.feed(e.Observed(at=story.at, reading=seen))

    tick(40, "the load began")
    tick(30, "")
    assert story.state.suggestions.pending == ()
    tick(1, "")
    story.until("proposed", 2)

    rule.on = False
    tick(300, "the load changed")
    assert ids(story.state) == ["chat-s1"]


TTFT = Slo(ttft=Objective(under_s=0.5, share=0.95))
LOOSE = Slo(ttft=Objective(under_s=0.5, share=0.9))


@pytest.mark.parametrize(
    ("slo", "late", "count", "burns"),
    [
        (TTFT, 0.75, 40, True),
        (TTFT, 0.7, 40, False),
        (TTFT, 1.0, 19, False),
        (LOOSE, 0.55, 40, True),
        (LOOSE, 0.5, 40, False),
        (Slo(), 1.0, 40, False),
    ],
)
def test_a_budget_that_burns_fast_needs_one_window(slo: Slo, late: float, count: int, *, burns: bool) -> None:
    seen = replace(reading(NOON), ttft=Latency(count=count, p50=1, p95=1, p99=1, over_slo=late))

    assert burns_fast(seen, slo) is burns


def test_failures_count_with_enough_of_them() -> None:
    few = replace(reading(NOON), requests={"ok": 96, "failed": 4})
    many = replace(reading(NOON), requests={"ok": 95, "failed": 5})

    assert not burns_fast(few, Slo())
    assert burns_fast(many, Slo())


def test_several_are_open_in_the_order_of_the_rules() -> None:
    story = world(graphs(), queue()).until("proposed").tick(5)

    assert changes(story.state) == [{"max_num_seqs": 8}, {"enforce_eager": False}]
    assert story.state.phase is Phase.PROPOSED


def test_no_more_than_three_are_open_and_a_more_important_one_takes_the_place_of_the_last() -> None:
    first = queue()
    first.on = False
    rest = (
        Says("G1", {"enforce_eager": False}),
        Says("B2", {"enable_chunked_prefill": False}),
        Says("X1", {"enable_prefix_caching": True}),
        Says("A1", {"async_scheduling": True}),
    )
    story = world(*rest, first).tick(20)
    assert [suggestion.proposal.rule for suggestion in story.state.suggestions.open] == ["G1", "B2", "X1"]

    first.on = True
    story.tick(20)

    assert [suggestion.proposal.rule for suggestion in story.state.suggestions.open] == ["Q1", "G1", "B2"]
    assert story.ended("chat-s3").notes[-1] == "chat-s4 comes before it"


def test_any_open_one_is_approved_and_the_others_are_superseded() -> None:
    story = world(graphs(), queue()).until("proposed").tick(5)
    first, second = story.state.suggestions.open

    story.feed(e.Approved(at=story.at, actor="alice", suggestion=second.id, digest=second.digest))

    assert story.state.rollout is not None
    assert story.state.rollout.suggestion.id == second.id
    assert story.ended(first.id).status == "superseded"
    assert ids(story.state) == []


def test_an_approval_during_the_check_of_another_one_ends_the_check() -> None:
    late = graphs()
    late.on = False
    story = world(late, queue()).until("proposed")
    first = story.state.suggestions.open[0]
    late.on = True
    story.until("checking")

    story.feed(e.Approved(at=story.at, actor="alice", suggestion=first.id, digest=first.digest))
    story.tick(3)

    assert story.state.rollout is not None
    assert story.state.rollout.suggestion.id == first.id
    assert story.ended("chat-s2").status == "superseded"


def test_after_a_denial_the_others_stay_open() -> None:
    story = world(graphs(), queue()).until("proposed").tick(5)
    first, second = story.state.suggestions.open

    story.feed(e.Denied(at=story.at, actor="bob", suggestion=first.id, reason="no")).tick(5)

    assert (story.state.phase, ids(story.state)) == (Phase.PROPOSED, [second.id])
    assert story.ended(first.id).decided_by == "bob"
    assert [outcome.to for outcome in story.state.outcomes] == [{"max_num_seqs": 8}]


def test_it_is_withdrawn_when_its_evidence_is_gone() -> None:
    rule = queue()
    story = world(rule).until("proposed")

    rule.on = False
    assert story.tick(119).state.phase is Phase.PROPOSED
    story.tick(2)

    assert story.state.phase is Phase.OBSERVING
    assert story.ended("chat-s1").status == "withdrawn"
    assert story.ended("chat-s1").notes[-1] == "chat-s1 is withdrawn: no policy has proposed it for 120 s"


def test_stale_metrics_and_an_idle_server_withdraw_nothing() -> None:
    rule = queue()
    story = world(rule).until("proposed")
    rule.on = False

    for seen in ({"coverage": 0.5}, {"waiting": 0, "running": 0}):
        for _ in range(200):
            story.at += timedelta(seconds=1)
            story.feed(e.Observed(at=story.at, reading=reading(story.at, **seen)))

    assert story.state.phase is Phase.PROPOSED


def test_what_a_person_asked_for_is_not_withdrawn() -> None:
    story = World(waiting=0).start().tick()
    story.feed(e.ChangeAsked(at=story.at, actor="alice", to={"max_num_seqs": 2}, reason="try")).tick(300)

    assert ids(story.state) == ["chat-s1"]


def test_a_request_comes_first_and_takes_the_place_of_the_same_knob() -> None:
    story = world(graphs(), queue()).until("proposed").tick(5)

    story.feed(e.ChangeAsked(at=story.at, actor="alice", to={"max_num_seqs": 2}, reason="try")).tick(100)

    assert changes(story.state) == [{"max_num_seqs": 2}, {"enforce_eager": False}]
    assert story.ended("chat-s1").status == "superseded"


def test_it_is_superseded_by_a_rule_that_it_yields_to() -> None:
    rule, heat = queue(), Says("T1", {}, klass="note", on=False)
    story = world(rule, heat).until("proposed")

    heat.on = True
    story.tick(3)

    assert story.state.phase is Phase.OBSERVING
    assert story.ended("chat-s1").status == "superseded"
    assert (
        story.ended("chat-s1").notes[-1]
        == "chat-s1 yields to T1 gpu-throttles: every change waits while a GPU throttles"
    )


def test_a_larger_value_supersedes_it_after_a_minute() -> None:
    rule = queue(8)
    story = world(rule).until("proposed")

    rule.to = {"max_num_seqs": 32}
    assert changes(story.tick(55).state) == [{"max_num_seqs": 8}]
    story.tick(10)

    assert changes(story.state) == [{"max_num_seqs": 32}]
    assert story.ended("chat-s1").status == "superseded"
    assert story.ended("chat-s1").notes[-1] == "chat-s2 takes its place"


def test_a_slightly_larger_value_does_not() -> None:
    rule = queue(16)
    story = world(rule).until("proposed")

    rule.to = {"max_num_seqs": 18}
    story.tick(200)

    assert ids(story.state) == ["chat-s1"]


def test_the_first_traffic_refreshes_the_forecast_with_a_new_digest() -> None:
    story = world(queue(), judge=Forecasting())
    story.silent = True
    story.until("proposed")
    before = story.state.suggestions.open[0]
    assert before.forecast is None

    story.silent = False
    story.tick(130)

    (after,) = story.state.suggestions.open
    assert after.forecast is not None
    assert (after.id, after.expires_at) == (before.id, before.expires_at)
    assert after.digest != before.digest
    assert "there is traffic now" in after.changed


def test_an_approval_of_the_former_digest_starts_nothing() -> None:
    story = world(queue(), judge=Forecasting())
    story.silent = True
    before = story.until("proposed").state.suggestions.open[0]
    story.silent = False
    story.tick(130)

    story.feed(e.Approved(at=story.at, actor="alice", suggestion=before.id, digest=before.digest))
    assert story.state.rollout is None

    story.approve()
    assert story.state.rollout is not None


def test_it_is_refreshed_once_a_minute_and_only_for_a_material_difference() -> None:
    rule = queue()
    story = world(rule).until("proposed")

    def digests(seconds: int) -> set[str]:
        return {story.tick().state.suggestions.open[0].digest for _ in range(seconds)}

    rule.waiting = 20
    assert len(digests(130)) == 1
    rule.waiting = 40
    assert len(digests(130)) == 2
    assert story.state.suggestions.open[0].proposal.why == "40 wait"


def test_a_plan_that_was_configured_since_reaches_it() -> None:
    story = world(queue()).until("proposed")
    old = story.state.suggestions.open[0].plan

    story.machine = Machine(replace(story.machine.rules, plan=replace(PLAN, margin=0.02)))
    story.tick(130)

    assert old is not None
    assert story.state.suggestions.open[0].plan == replace(old, margin=0.02)
    assert story.state.suggestions.open[0].changed == "the plan of the rollout"


def test_a_gated_one_does_not_stand_in_the_way_of_an_auto_one() -> None:
    gated, auto = (
        Says("M1", {"enforce_eager": False}, klass="gated"),
        Says("A1", {"max_num_seqs": 8}, on=False),
    )
    story = world(gated, auto)
    story.mode = "auto"
    story.start().until("proposed")
    assert ids(story.state) == ["chat-s1"]

    auto.on = True
    story.until("launching", 10)

    assert story.state.rollout is not None
    assert story.state.rollout.suggestion.id == "chat-s2"
    assert story.ended("chat-s1").status == "superseded"


def test_in_auto_mode_an_auto_one_is_checked_before_a_gated_one_of_higher_rank() -> None:
    story = world(Says("M1", {"enforce_eager": False}, klass="gated"), Says("A1", {"max_num_seqs": 8}))
    story.mode = "auto"

    story.start().until("launching", 10)

    assert story.state.rollout is not None
    assert story.state.rollout.suggestion.id == "chat-s1"


def test_one_left_open_starts_by_itself_once_the_mode_is_auto() -> None:
    story = world(queue()).until("proposed")
    story.mode = "auto"

    story.start().until("launching", 3)

    assert story.state.rollout is not None
    assert story.state.rollout.suggestion.id == "chat-s1"


def test_a_change_of_the_servers_ends_all() -> None:
    story = World.servers(
        2, "surge", machine=Machine(rules(policies=(("q", queue()), ("g", graphs()))))
    ).start()
    story.until("proposed").tick(5)
    assert len(ids(story.state)) == 2

    story.feed(e.ServerLost(at=story.at, server="vllm1", why="exited with 1"))

    assert ids(story.state) == []
    assert {suggestion.status for suggestion in story.state.suggestions.ended} == {"superseded"}


def test_a_pause_keeps_what_is_open_until_it_expires() -> None:
    rule, late = queue(), graphs()
    late.on = False
    story = world(rule, late).until("proposed").feed(e.Paused(at=NOON, actor="alice"))
    rule.on, late.on = False, True

    assert ids(story.tick(300).state) == ["chat-s1"]
    story.at += timedelta(hours=1)
    story.tick(1)

    assert story.ended("chat-s1").status == "expired"
    assert story.state.phase is Phase.OBSERVING


def test_a_restart_keeps_what_is_open_and_ends_the_check() -> None:
    late = graphs()
    late.on = False
    story = world(queue(), late).until("proposed")
    late.on = True
    story.until("checking").start()

    assert (story.state.phase, ids(story.state)) == (Phase.PROPOSED, ["chat-s1"])


def test_a_refused_preflight_leaves_the_others_open() -> None:
    late = graphs()
    late.on = False
    story = world(queue(), late).until("proposed")
    story.preflight, late.on = PreflightResult(problem="vLLM refuses it", lasting=True), True
    story.tick(5)

    assert ids(story.state) == ["chat-s1"]
    assert story.ended("chat-s2").notes[-1] == "vLLM refuses it"


def test_gpus_that_the_engine_chose_neither_end_nor_hide_a_suggestion() -> None:
    says = Says("Q1", {"max_num_seqs": 8})
    story = world(says)
    gpus = {"gpus": ("0,1", "5")}
    story.preflight = PreflightResult(resolved=gpus)

    story.tick(40)
    first = story.state.suggestions.open[0]
    says.waiting = 40.0
    story.tick(300)

    (still,) = story.state.suggestions.open
    assert still.id == first.id
    assert dict(still.proposal.to) == {"max_num_seqs": 8, "gpus": "5"}
    assert still.proposal.evidence[0].value == 40.0
    assert still.before["gpus"] == "0,1"
    says.on = False
    story.tick(300)
    assert not story.state.suggestions.open
