"""Upgrades: another image, program, environment or model, which only a person asks for within limits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from flettner.agent.domain import effects as fx
from flettner.agent.domain import events as e
from flettner.agent.domain.canary_evidence import CanaryEvidence, Counts, EvidenceStream
from flettner.agent.domain.events import Observed
from flettner.agent.domain.model import Objective, PreflightResult, Proposal, Strategy
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import EngineLiveness, Reading
from flettner.agent.domain.state import Phase
from flettner.agent.domain.upgrade import UpgradeLimits, matches
from flettner.agent.domain.verdict import Verdict
from flettner.agent.machine.canary_decision import UNREAD_S, find_lost_metrics, must_be_as_fast
from flettner.agent.machine.guard import Guard
from flettner.agent.machine.step import Machine
from flettner.agent.quality.golden_prompts import GoldenPromptOptions
from flettner.vllm_facts.values import Value
from tests.support.machine_stories import PLAN, CountingJudge, World, rules

LIMITS = UpgradeLimits(
    images=("vllm/vllm-openai:v0.*", "ghcr.io/acme/*"),
    commands=("/opt/vllm-*/bin/vllm",),
    models=("Qwen/*",),
    revisions=("v1",),
    env=("VLLM_USE_V1",),
)
IMAGE = "vllm/vllm-openai:v0.33.0"
PINNED = f"{IMAGE}@sha256:{'3' * 64}"


def world(
    *,
    limits: UpgradeLimits = LIMITS,
    command: tuple[str, ...] = (),
    strategy: Strategy = "surge",
    **more: object,
) -> World:
    guard = Guard(cooldown_s=60, upgrades=limits)
    machine = Machine(rules(guard=guard, policies=(), exam=GoldenPromptOptions(command=command)))
    preflight = PreflightResult(strategy=strategy, outage_s=40.0 if strategy == "swap" else 0.0)
    return World(machine=machine, preflight=preflight, **more).start().tick()  # type: ignore[arg-type]


def ask(story: World, to: Mapping[str, Value], *, accepts: bool = False) -> World:
    asked = e.ChangeAsked(at=story.at, actor="root", to=to, reason="newer", accepts_other_answers=accepts)
    return story.feed(asked).tick(2)


def launches(story: World) -> list[fx.Launch]:
    return [effect for effect in story.performed if isinstance(effect, fx.Launch)]


OUTSIDE = (
    "image=evil/vllm:v0.33.0 was requested: [targets.upgrades] images allows vllm/vllm-openai:v0.*, "
    "ghcr.io/acme/*; request what it allows, or add a pattern there and restart flettner"
)
REFUSED: dict[str, tuple[Mapping[str, Value], str]] = {
    "image": ({"image": "evil/vllm:v0.33.0"}, OUTSIDE),
    "digest under an allowed tag": ({"image": PINNED}, "images allows"),
    "deeper repository": ({"image": "ghcr.io/acme/evil/vllm:1"}, "images allows"),
    "no image": ({"image": "vllm/vllm-openai:v0.33.0 --privileged"}, "no name of an image"),
    "null image": ({"image": None}, "image=None was requested: image is a text"),
    "command": ({"command": "/evil/vllm"}, "commands allows /opt/vllm-*/bin/vllm"),
    "way out": ({"command": "/opt/vllm-x/../bin/vllm"}, "has a part . or .."),
    "the folder itself": ({"command": "/opt/vllm-0.33/bin/."}, "has a part . or .."),
    "an empty name": ({"image": "vllm/vllm-openai:"}, "ends with / or :"),
    "a hidden line": ({"command": "/opt/vllm-0.33/bin/vllm\n"}, "characters that nobody sees"),
    "a hidden direction": ({"command": "/opt/vllm-\u202e0.33/bin/vllm"}, "characters that nobody sees"),
    "a second variable": ({"env.VLLM_USE_V1": "1\0LD_PRELOAD=x"}, "characters that nobody sees"),
    "relative": ({"command": "vllm"}, "not the full path of a program"),
    "model": ({"model": "evil/model"}, "models allows Qwen/*"),
    "tokenizer": ({"tokenizer": "evil/model"}, "models allows Qwen/*"),
    "revision": ({"revision": "refs/pr/5"}, "revisions allows v1"),
    "variable": ({"env.LD_PRELOAD": "/evil.so"}, "env allows VLLM_USE_V1"),
    "number": ({"env.VLLM_USE_V1": 1}, 'its value is a text, as "1", or null'),
    "with a good one": ({"image": IMAGE, "max_num_seqs": 8, "api_key": "mine"}, "a change of api_key"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_upgrade_outside_the_limits_is_refused(case: str) -> None:
    to, why = REFUSED[case]

    story = ask(world(), to, accepts=True)

    assert why in story.state.note
    assert (story.state.phase, story.state.suggestions.pending) == (Phase.OBSERVING, ())


@pytest.mark.parametrize(
    "to",
    [
        {"image": IMAGE},
        {"command": "/opt/vllm-1/bin/vllm"},
        {"env.VLLM_USE_V1": "1"},
        {"model": "evil/model"},
        {"revision": "attack"},
        {"tokenizer": "evil/tokenizer"},
    ],
    ids=str,
)
def test_nothing_is_allowed_by_default(to: Mapping[str, Value]) -> None:
    story = ask(world(limits=UpgradeLimits()), to, accepts=True)

    assert "allows none" in story.state.note
    assert story.state.suggestions.pending == ()


def test_a_value_of_a_variable_is_not_shown_when_it_is_refused() -> None:
    assert "hunter2" not in ask(world(), {"env.OTHER": "hunter2"}).state.note


@pytest.mark.parametrize("name", ["image", "model", "revision", "tokenizer", "env.VLLM_USE_V1"])
@pytest.mark.parametrize("mode", ["approve", "auto"])
def test_a_policy_proposes_no_upgrade(name: str, mode: str) -> None:
    @dataclass(frozen=True, slots=True)
    class Upgrades:
        def propose(self, _: Reading, __: Context) -> tuple[Proposal, ...]:
            return (Proposal(rule="ODD-1", to={name: IMAGE}, why="1", expects="2", risks="3", source="4"),)

    guard = Guard(cooldown_s=60, upgrades=LIMITS)
    machine = Machine(rules(guard=guard, policies=(("odd", Upgrades()),)))

    story = World(machine=machine, mode=mode).start().tick(5)  # type: ignore[arg-type]

    assert story.state.suggestions.pending == ()
    assert "only an administrator asks for an upgrade" in story.state.note


def test_an_upgrade_is_pinned_before_it_is_approved_and_green_starts_with_it() -> None:
    story = world()
    story.preflight = replace(story.preflight, resolved={"image": ("vllm/vllm-openai:v0.32.0", PINNED)})
    story = ask(story, {"image": IMAGE, "max_num_seqs": 8})
    (suggestion,) = story.state.suggestions.open

    story.approve().until("canary")

    assert suggestion.proposal.to == {"image": PINNED, "max_num_seqs": 8}
    assert suggestion.before == {"image": "vllm/vllm-openai:v0.32.0", "max_num_seqs": 4}
    assert suggestion.proposal.klass == "gated"
    (launch,) = launches(story)
    assert launch.server.setting == {"model": "m", "max_num_seqs": 8}
    assert launch.server.start == {"image": PINNED}


def test_flags_that_the_new_release_writes_otherwise_are_approved_with_it() -> None:
    story = world()
    resolved: dict[str, tuple[Value, Value]] = {
        "image": ("old", PINNED),
        "max_num_seqs": (4, None),
        "max_num_active_seqs": (None, 4),
    }
    story.preflight = replace(story.preflight, resolved=resolved)
    story = ask(story, {"image": IMAGE})
    (suggestion,) = story.state.suggestions.open

    story.approve().until("canary")

    assert suggestion.proposal.to == {"image": PINNED, "max_num_seqs": None, "max_num_active_seqs": 4}
    (launch,) = launches(story)
    assert launch.server.setting == {"model": "m", "max_num_seqs": None, "max_num_active_seqs": 4}


def test_a_variable_that_the_server_has_from_elsewhere_is_unset() -> None:
    story = world()
    story.preflight = replace(story.preflight, resolved={"env.VLLM_USE_V1": ("1", None)})
    story = ask(story, {"env.VLLM_USE_V1": None})
    (suggestion,) = story.state.suggestions.open

    story.approve().until("canary")

    assert (suggestion.before, suggestion.proposal.to) == (
        {"env.VLLM_USE_V1": "1"},
        {"env.VLLM_USE_V1": None},
    )
    assert launches(story)[0].server.start == {"env.VLLM_USE_V1": None}


def test_what_the_engine_reads_of_an_upgrade_counts_after_a_restart() -> None:
    story = ask(world(), {"image": IMAGE}).approve().until("observing").tick(90)
    promoted = story.state.fleet.servers[0]
    story.running[promoted.name] = replace(story.running[promoted.name], start={"image": "by-hand:1"})

    story.start().tick()

    assert story.state.fleet.servers[0].start == {"image": "by-hand:1"}


def test_another_digest_makes_another_suggestion_to_approve() -> None:
    digests = set()
    for digit in "34":
        story = world()
        pinned = f"{IMAGE}@sha256:{digit * 64}"
        story.preflight = replace(story.preflight, resolved={"image": ("old", pinned)})
        digests.add(ask(story, {"image": IMAGE}).state.suggestions.open[0].digest)

    assert len(digests) == 2


def test_a_promoted_server_is_started_again_as_it_was_upgraded() -> None:
    story = ask(world(), {"env.VLLM_USE_V1": "0"}).approve().until("observing").tick(90)
    promoted = story.state.fleet.servers[0]

    story.start().tick()
    kept = story.state.fleet.servers[0].start
    story.running.pop(promoted.name)
    lost = e.ServerLost(at=story.at, server=promoted.name, why="exited with 1", gone=True)
    story.feed(lost).until("observing")

    assert promoted.start == kept == {"env.VLLM_USE_V1": "0"}
    assert launches(story)[-1].server.start == {"env.VLLM_USE_V1": "0"}
    assert launches(story)[-1].server.name != promoted.name


def test_upgrades_add_up_and_a_rollback_starts_the_old_server_as_it_was() -> None:
    story = ask(world(strategy="swap"), {"env.VLLM_USE_V1": "0"}).approve().until("observing").tick(90)
    old = story.state.fleet.servers[0]
    ask(story, {"command": "/opt/vllm-0.33/bin/vllm"}).approve().until("canary")
    green = story.state.canary.green

    story.green_fails = 1
    story.until("cooldown")

    assert green.start == {"env.VLLM_USE_V1": "0", "command": "/opt/vllm-0.33/bin/vllm"}
    assert launches(story)[-1].server.name == old.name
    assert launches(story)[-1].server.start == {"env.VLLM_USE_V1": "0"}


def test_an_upgrade_is_judged_harder() -> None:
    story = ask(world(), {"image": IMAGE})
    (suggestion,) = story.state.suggestions.open

    story.approve().until("canary")

    assert suggestion.plan is not None
    assert suggestion.plan.examine_s > 0
    assert any("image may alter the answers" in note for note in suggestion.notes)
    *shares, hold = story.state.canary.plan.steps
    assert [step.at_most_s for step in shares] == [2 * step.at_most_s for step in PLAN.steps[:-1]]
    assert hold.at_least_s == 2 * PLAN.steps[-1].at_least_s
    assert hold.at_most_s == PLAN.steps[-1].at_most_s + PLAN.steps[-1].at_least_s
    assert any(isinstance(effect, fx.Examine) and effect.compare for effect in story.performed)


@pytest.mark.parametrize(
    ("to", "of_blue", "of_green", "phase"),
    [
        ({"image": IMAGE}, (), ("num_preemptions",), "rolling_back"),
        ({"image": IMAGE}, ("num_preemptions",), ("num_preemptions",), "canary"),
        ({"max_num_seqs": 8}, (), ("num_preemptions",), "canary"),
    ],
)
def test_a_release_without_a_metric_that_blue_has_is_rolled_back(
    to: Mapping[str, Value], of_blue: tuple[str, ...], of_green: tuple[str, ...], phase: str
) -> None:
    story = ask(world(), to).approve().until("canary")
    story.lacks = dict.fromkeys(story.running, frozenset(of_blue))
    story.lacks[story.state.canary.green.name] = frozenset(of_green)

    story.tick(2)

    assert story.state.phase.value == phase
    assert ("vllm:num_preemptions" in story.state.canary.why) == (phase == "rolling_back")


def test_a_release_whose_metrics_cannot_be_used_is_rolled_back() -> None:
    story = ask(world(), {"image": IMAGE}).approve().until("canary")
    green = story.state.canary.green.name
    unread = EngineLiveness(age_s=UNREAD_S, running=0, waiting=0, tokens=None, unusable="it has no load")
    engines = {name: story.liveness(name) for name in story.running} | {green: unread}
    now = Observed(at=story.at, arms={}, engines=engines, reading=None)

    assert "cannot be used, and blue's can: it has no load" in find_lost_metrics(story.state, now)
    engines[green] = replace(unread, age_s=UNREAD_S - 1)
    assert find_lost_metrics(story.state, now) == ""


@pytest.mark.parametrize(
    ("to", "itl", "is_judged"),
    [
        ({"image": IMAGE}, None, True),
        ({"image": IMAGE, "max_num_seqs": 8}, None, False),
        ({"image": IMAGE}, Objective(under_s=0.05, share=0.95), False),
        ({"max_num_seqs": 8}, None, False),
    ],
)
def test_a_new_release_with_the_same_flags_must_be_as_fast(
    to: Mapping[str, Value], itl: Objective | None, is_judged: bool
) -> None:
    story = ask(world(), to).approve().until("canary")
    promised = replace(story.machine.rules, slo=replace(story.machine.rules.slo, itl=itl))

    assert must_be_as_fast(promised, story.state.canary) is is_judged


@dataclass(frozen=True, kw_only=True)
class NeverProved(CountingJudge):
    """Lacks only the proof of one stream, with these counts, where the other judge passes a step."""

    counted: Counts

    def update(self, evidence: CanaryEvidence, **second: Any) -> tuple[CanaryEvidence, Verdict]:  # noqa: ANN401
        evidence, verdict = super().update(evidence, **second)
        evidence = replace(evidence, streams=(EvidenceStream(name="errors", counted=self.counted),))
        lacks = Verdict(kind="wait", why="", waits="errors: evidence 1 of 20", lacks_proof_of=("errors",))
        return evidence, lacks if verdict.kind == "pass" else verdict


@pytest.mark.parametrize(
    ("to", "bad", "outcome", "why"),
    [
        ({"image": IMAGE}, 12, "promoted", "points more than blue's are not excluded"),
        ({"image": IMAGE}, 90, "undecided", "errors: evidence 1 of 20"),
        ({"image": IMAGE}, 300, "rolled_back", "green is worse: green: 300 of 9,000 requests failed"),
        ({"max_num_seqs": 8}, 12, "undecided", "errors: evidence 1 of 20"),
    ],
)
def test_only_an_upgrade_has_a_last_look_at_the_time_limit_of_a_step(
    to: Mapping[str, Value], bad: int, outcome: str, why: str
) -> None:
    judge = NeverProved(counted=Counts(9000, 12, 9000, bad))
    story = world()
    story.machine = Machine(replace(story.machine.rules, judge=judge))

    ask(story, to).approve().until("canary").until("observing" if outcome == "promoted" else "cooldown", 900)

    assert story.state.outcomes[-1].result == outcome
    assert why in story.state.canary.why


def test_another_model_needs_a_check_or_the_acceptance_of_other_answers() -> None:
    refused = ask(world(), {"model": "Qwen/Qwen3-8B"})
    accepted = ask(world(), {"model": "Qwen/Qwen3-8B"}, accepts=True)
    checked = ask(world(command=("check", "{green}")), {"model": "Qwen/Qwen3-8B"})

    assert "the answers of another model cannot be compared with those of m; give" in refused.state.note
    assert refused.state.suggestions.pending == ()
    for story, examined in ((accepted, False), (checked, True)):
        story.approve().until("canary")
        assert story.state.canary.green.setting == {
            "model": "Qwen/Qwen3-8B",
            "served_model_name": "m",
            "max_num_seqs": 4,
        }
        examinations = [effect for effect in story.performed if isinstance(effect, fx.Examine)]
        assert bool(examinations) == examined
        assert not any(effect.compare for effect in examinations)


def test_a_pattern_reaches_over_no_slash_and_no_digest() -> None:
    assert matches("vllm/*:v0.*", "vllm/vllm-openai:v0.33.0")
    assert matches("vllm/vllm-openai@*", f"vllm/vllm-openai@sha256:{'1' * 64}")
    assert not matches("*/vllm", "evil.io/x/vllm")
    assert not matches("vllm/vllm-openai:*", f"vllm/vllm-openai:v1@sha256:{'1' * 64}")
    assert not matches("a.b", "axb")


def test_a_green_runs_on_cpus_like_the_server_that_it_is_a_copy_of() -> None:
    world = World().start()
    on_cpus = tuple(replace(server, on_cpus=True) for server in world.state.fleet.servers)
    world.state = replace(world.state, fleet=replace(world.state.fleet, servers=on_cpus))

    world.until("proposed").approve().until("observing")

    assert world.state.outcomes[-1].result == "promoted"
    assert [server.on_cpus for server in world.state.fleet.servers] == [True]
