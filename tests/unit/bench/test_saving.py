"""The benchmark of fewer servers: its worlds, and what a run is worth."""

from dataclasses import replace

import pytest

from bench.loop.config import config_text
from bench.loop.run import Run
from bench.loop.world import LoadPhase, WorldError, parse_world, read
from bench.saving import score as scoring
from bench.saving.__main__ import OWN, choose_worlds, figures
from bench.saving.score import begin_of_more, begin_of_return, keeps, score
from tests.support.virtual_server import Ended

WORLD = parse_world(
    "few",
    {
        "hardware": "4090-8b",
        "prompt": 100,
        "output": 20,
        "slo": {"ttft": ["1s", 0.9]},
        "servers": 2,
        "peak_rps": 1.0,
        "load": [[1200, 0.9, 1.0], [600, 2.0, 1.0]],
    },
)


def ended(at_s: float, ttft_s: float | None = 0.1) -> Ended:
    request = Ended(server="a", arrived_s=at_s, ended_s=at_s + 1.0, outcome="ok", ttft_s=ttft_s, gap_s=0.01)
    return request if ttft_s is not None else replace(request, outcome="failed")


RUN = Run(
    world="few",
    seed=0,
    suggestions=(),
    rollouts=(),
    shares=((0.0, {"a": 50, "b": 50}), (400.0, {"a": 100}), (1300.0, {"a": 50, "b": 50})),
    settings={},
    ended=tuple(ended(at_s, 2.0 if 1200 <= at_s < 1290 else 0.1) for at_s in range(0, 1800, 2)),
    sent=900,
    notes=(),
    cpu_s=1.0,
    servers=((-5.0, 2), (500.0, 1), (1301.0, 2)),
)


def test_the_worlds_have_several_servers_and_a_week() -> None:
    worlds = read(OWN)

    assert len(worlds) == 21
    assert all(world.servers > 1 and world.peak_rps for world in worlds)
    assert "containers = [" in config_text(worlds[0], "w")
    assert "save = true" in config_text(worlds[0], "w")


def test_worlds_are_named_by_themselves_or_by_their_file() -> None:
    held_out = OWN.with_name("held_out.toml")

    assert choose_worlds([]) == read(OWN)
    assert [world.name for world in choose_worlds(["morning", str(held_out)])][:2] == [
        "morning",
        "seasonal-on-t4",
    ]
    with pytest.raises(WorldError, match="nowhere"):
        choose_worlds(["nowhere"])


def test_a_load_returns_where_the_running_servers_do_not_carry_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "PEAK_S", 90.0)
    heavier = replace(WORLD, load=(*WORLD.load, LoadPhase(600.0, 200.0, 1.0)), peak_rps=3.0)

    assert begin_of_more(WORLD) == 1200.0
    assert begin_of_more(replace(WORLD, load=WORLD.load[:1])) is None
    assert begin_of_return(WORLD, 1) is None
    assert begin_of_return(heavier, 1) == 1800.0


def test_a_run_is_held_against_the_fewest_servers_that_keep_the_slo() -> None:
    result = score(WORLD, RUN)

    assert (result.least, result.running, result.saved, result.savable) == (1, 1, 1, 1)
    assert (result.spared_s, result.returns_s, result.put_back_before) == (500.0, None, 0)
    assert result.tens == (True, True, False)
    assert result.hours == (True,)


def test_fewer_servers_than_needed_are_counted() -> None:
    needy = replace(score(WORLD, RUN), least=2, returns_s=1200.0, back_s=100.0)

    table = figures([needy])

    assert table["saved where all are needed"] == "1 of 1"
    assert table["runs with fewer servers than the sweep needs"] == 1
    assert table["back within 180 s of the load"] == "1 of 1"


def test_a_request_without_an_answer_misses_every_objective() -> None:
    assert keeps(WORLD, [ended(0.0)] * 9 + [ended(0.0, None)])
    assert not keeps(WORLD, [ended(0.0)] * 8 + [ended(0.0, None)] * 2)
