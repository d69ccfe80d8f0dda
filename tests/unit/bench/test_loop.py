"""Runs of small worlds from end to end in virtual time, and their figures."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.loop import flat, jobs, static, story
from bench.loop.flat import draw_world
from bench.loop.report import document, figures, line, table
from bench.loop.run import Run
from bench.loop.score import Score, score, symptom
from bench.loop.static import best, configured, flaw, goodput, moves_right, of_start
from bench.loop.story import play
from bench.loop.world import World, WorldError, parse_world
from flettner.simulator.scheduler import Scheduler
from tests.support.virtual_server import Ended

CAPPED_TABLE: dict[str, object] = {
    "flags": ["--max-num-seqs", "2", "--sim-start-s", "5"],
    "hardware": "4090-8b",
    "prompt": 100,
    "output": 40,
    "slo": {"ttft": ["500ms", 0.95]},
    "load": [[240, 4, 1.0]],
    "right": {"max_num_seqs": "up"},
    "think_s": 5,
}
CAPPED = parse_world("capped", CAPPED_TABLE)
CALM = replace(CAPPED, name="calm", flags=CAPPED.flags[2:], right=None)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "CACHE", tmp_path / "cache")


@pytest.mark.slow
def test_a_cap_is_found_approved_after_thinking_and_rolled_out() -> None:
    run = play(CAPPED, 1)
    scored = score(CAPPED, run)

    first = scored.first
    assert first is not None
    assert scored.first_right
    assert not first.harmful
    assert first.suggestion.in_force["max_num_seqs"] == 2
    assert first.suggestion.approved_s is not None
    assert first.suggestion.approved_s >= first.suggestion.at_s + CAPPED.think_s
    (rollout,) = run.rollouts
    assert rollout.to == first.suggestion.to
    assert scored.gains[rollout.id] > 0.5
    assert scored.symptom_s == 60.0
    assert scored.lost == 0
    assert scored.minutes[0] is not None
    assert scored.minutes[0] < 0.5
    assert scored.best_end > 0.95
    assert run.sent == pytest.approx(960, rel=0.2)


def test_on_a_shared_card_green_is_late_beside_blue_and_still_promoted() -> None:
    """A lone server takes 20 ms for a token, two take 40 ms."""
    objectives = {"ttft": ["500ms", 0.95], "itl": ["26ms", 0.95]}
    document = {**CAPPED_TABLE, "slo": objectives, "shared_card": 0.1, "rollout": 'hold = "20s"'}
    world = parse_world("shared", document)

    run = play(world, 1)

    (rollout,) = run.rollouts
    assert rollout.outcome == "promoted"
    assert rollout.bad > 0.5 * rollout.exposed
    assert rollout.forecast_s is not None
    assert rollout.canary_s is not None
    assert rollout.canary_s <= rollout.forecast_s[1]


def test_the_model_alone_cures_a_cap_by_its_prediction() -> None:
    world = replace(CAPPED, load=(replace(CAPPED.load[0], seconds=360.0),), model="alone")

    run = play(world, 1)

    assert {suggestion.rule for suggestion in run.suggestions} == {"PM1"}
    (rollout,) = run.rollouts
    assert set(rollout.to) == {"max_num_seqs"}
    assert score(world, run).gains[rollout.id] > 0.5


def test_the_model_leaves_a_healthy_server_alone() -> None:
    run = play(replace(CALM, model="alone"), 1)

    assert not run.suggestions
    assert not run.rollouts


def test_a_run_whose_operator_fails_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_: object) -> None:
        raise AttributeError("no such field")

    monkeypatch.setattr(story, "_operate", failing)

    with pytest.raises(AttributeError, match="no such field"):
        play(CAPPED, 1)


def test_a_world_whose_server_does_not_start_is_no_result() -> None:
    world = replace(CAPPED, flags=("--num-gpu-blocks-override", "1"))

    with pytest.raises(WorldError, match=r"does not start.*max seq len"):
        play(world, 1)


def test_a_client_that_gives_up_is_no_lost_request() -> None:
    ended = tuple(Ended("s", 1.0, 401.0, outcome) for outcome in ("gave_up", "truncated", "ok"))

    scored = score(CALM, replace(_nothing(CALM), ended=ended, sent=3))

    assert (scored.lost, scored.gave_up) == (1, 1)


def test_a_healthy_server_is_left_alone() -> None:
    scored = score(CALM, play(CALM, 1))

    assert scored.first_right
    assert not scored.rollouts
    assert scored.symptom_s is None
    assert scored.end == pytest.approx(scored.best_end, abs=0.02)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    short = replace(CAPPED, load=(replace(CAPPED.load[0], seconds=90.0),))

    first, again, other = (replace(play(short, seed), cpu_s=0.0) for seed in (1, 1, 2))

    assert first == again
    assert first.ended != other.ended


@pytest.mark.parametrize("world", [CAPPED, CALM], ids=lambda world: world.name)
def test_steps_taken_at_once_change_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = of_start(world)
    monkeypatch.setattr(Scheduler, "repeats", lambda *_: 0)
    monkeypatch.setattr(static, "CACHE", static.CACHE / "slow")

    assert of_start(world) == fast


@pytest.mark.slow
def test_the_sweep_finds_the_cure_and_the_flaws_of_a_world() -> None:
    choice = best(CAPPED)

    assert choice.goodput.whole > 0.95
    assert moves_right(CAPPED, configured(CAPPED), {**configured(CAPPED), **choice.change})
    assert not flaw(CAPPED, of_start(CAPPED), choice)
    assert "gains" in flaw(replace(CAPPED, right=None), of_start(CAPPED), choice)
    assert "no knob" in flaw(replace(CAPPED, right={"watermark": "up"}), of_start(CAPPED), choice)
    assert "no setting" in flaw(replace(CALM, right=CAPPED.right), of_start(CALM), best(CALM))


def test_a_setting_with_which_the_server_does_not_start_has_no_goodput() -> None:
    start = configured(CAPPED)

    assert goodput(CAPPED, {**start, "gpu_memory_utilization": 0.99}) == static.NONE
    assert goodput(CAPPED, {**start, "max_num_batched_tokens": 1}) == static.NONE


def test_a_vllm_default_that_is_written_out_is_no_move() -> None:
    start = configured(CALM)

    assert not moves_right(CAPPED, start, {**start, "max_num_seqs": 256})
    assert moves_right(CAPPED, start, {**start, "max_num_seqs": 257})


def test_the_symptom_is_the_end_of_the_first_minute_that_misses_the_slo() -> None:
    def ended(at_s: float, ttft_s: float) -> Ended:
        return Ended("s", at_s, at_s + 1, "ok", ttft_s, 0.01)

    good = [ended(at_s, 0.1) for at_s in range(120)]
    late = [ended(at_s, 0.9) for at_s in range(120, 124)]

    assert symptom(CAPPED, good) is None
    assert symptom(CAPPED, [*good, *late]) == 124.0


def test_the_figures_name_what_the_goals_ask(capsys: pytest.CaptureFixture[str]) -> None:
    scores: list[Score] = [score(CALM, _nothing(CALM))]

    goals = figures(scores)

    assert goals["suggested where nothing cures"] == "0 of 1"
    assert goals["harmful suggestions"] == 0
    assert "calm" in line(scores[0])
    assert "requests lost" in table(scores)
    assert document(scores)["figures"] == goals
    assert capsys.readouterr().out == ""


def test_a_drawn_world_is_the_same_for_its_number_and_is_within_its_ranges() -> None:
    drawn = [draw_world(number) for number in range(1, 9)]

    assert drawn[2] == draw_world(3)
    assert len({world.flags for world in drawn}) == 8
    for world in drawn:
        assert world.right is None
        assert world.slo.ttft is not None
        assert world.slo.itl is not None
        assert 0.01 < world.load[0].rate < 200


def test_a_canary_of_a_flat_world_counts_by_what_suggested_it() -> None:
    calm = {"flat": True, "default": 0.99, "has_law": True, "off": [], "on": []}
    missed = {**calm, "default": 0.3, "on": [{"rule": "PM1"}]}

    assert flat.summarise([calm, missed, {"flat": False}]) == {
        "worlds": 3,
        "flat": 2,
        "with_a_law": 2,
        "objective_missed": 1,
        "without_a_canary_off": 2,
        "without_a_canary_on": 1,
        "missed_without_a_canary_off": 1,
        "missed_without_a_canary_on": 0,
    }


def _nothing(world: World) -> Run:
    return Run(
        world=world.name,
        seed=1,
        suggestions=(),
        rollouts=(),
        shares=((0.0, {"w-r1": 100}),),
        settings={"w-r1": configured(world)},
        ended=(),
        sent=0,
        notes=(),
        cpu_s=0.0,
    )


def test_a_cap_is_cured_without_a_second_server() -> None:
    world = replace(CAPPED, load=(replace(CAPPED.load[0], seconds=300.0),), mode="auto", live_cap=True)
    scored = jobs.run(world, 1, real_time=False)
    (rollout,) = scored.rollouts

    assert (rollout.outcome, scored.lost) == ("promoted", 0)
    assert scored.first_right
    assert set(rollout.to) == {"max_num_seqs"}
    assert scored.right_since_s is not None
    assert rollout.began_s < scored.right_since_s <= 180
    assert {name.split()[0] for _, shares in scored.shares for name in shares} == {"w-r1"}


def test_other_knobs_need_a_restart() -> None:
    assert jobs.has_cap_to_change(CAPPED)
    assert not jobs.has_cap_to_change(replace(CAPPED, right={"enforce_eager": "down"}))
