"""The daemon built from a config."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flettner.agent.audit.records import DAEMON, JournalEntry
from flettner.agent.config import loader
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError, ConfigError
from flettner.agent.domain.fleet import Split
from flettner.agent.domain.model import Mode
from flettner.agent.domain.ports import Site, TrafficSeen
from flettner.agent.domain.state import State
from flettner.agent.plugins.loader import build_plugin
from flettner.agent.runtime import wiring
from flettner.agent.runtime.wiring import assemble, find_removed
from flettner.primitives.wall_clock import utc_now
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic

CONFIG = """
[agent]
state_dir = "state"
approval = "other"
[[targets]]
name = "chat"
[targets.engine]
kind = "process"
serving = "http://127.0.0.1:8000"
"""


def test_a_target_that_is_no_longer_in_the_config_is_found_until_its_directory_is_gone(
    tmp_path: Path,
) -> None:
    config = loader.parse_config(CONFIG, here=tmp_path)
    route = Route(number=1, servers=(), weights={}, fallback="")
    states = {name: State(target=name, split=Split(route=route)) for name in ("chat", "old", "gone")}
    for name in ("chat", "old", "idle"):
        (tmp_path / "state" / name).mkdir(parents=True)

    assert find_removed(config, {**states, "idle": State(target="idle")}) == ["old"]


@pytest.mark.parametrize(("mode", "acts"), [("advise", False), ("approve", True), ("auto", True)])
def test_mode_and_approvers_reach_the_machine_and_the_engine(tmp_path: Path, mode: Mode, acts: bool) -> None:
    engine = FakeEngine()

    def with_fake(kind: str, name: str, options: Any, **more: Any) -> object:  # noqa: ANN401 - as build
        return engine if name == "process" else build_plugin(kind, name, options, **more)

    (tmp_path / "state").mkdir()
    config = loader.parse_config(CONFIG, here=tmp_path, build=with_fake)
    with assemble(config, mode, above=4, accept_new_journal=True) as (daemon, epoch):
        state = daemon.targets()["chat"].state

    assert (state.mode, state.approval, epoch) == (mode, "other", 5)
    assert engine.site
    assert engine.site.acts is acts


@pytest.mark.parametrize("left", [False, True])
def test_a_journal_removed_with_its_mark_and_key_is_missed_also_in_advise(
    tmp_path: Path, *, left: bool
) -> None:
    engine = FakeEngine()

    def with_fake(kind: str, name: str, options: Any, **more: Any) -> object:  # noqa: ANN401 - as build
        return engine if name == "process" else build_plugin(kind, name, options, **more)

    (tmp_path / "state").mkdir()
    if left:
        (tmp_path / "state" / "chat").mkdir()
        (tmp_path / "state" / "chat" / "model.json").touch()
    config = loader.parse_config(CONFIG, here=tmp_path, build=with_fake)

    with assemble(config, "advise", above=0) as (daemon, _):
        records = daemon.journal.after(0, 10)

    assert [record["action"] for record in records] == (["audit.missing"] if left else [])
    assert not left or "chat of an earlier daemon: the journal was removed" in records[0]["why"]


class EngineAwayOnce(FakeEngine):
    attempts = 0

    async def newest_epoch(self) -> int:
        self.attempts += 1
        if self.attempts == 1:
            raise ActError("the API server does not answer")
        return self.epoch


class TrafficAwayOnce(FakeTraffic):
    epoch = 0
    attempts = 0

    def bind(self, site: Site) -> FakeTraffic:
        del site
        return self

    async def observe(self) -> TrafficSeen | None:
        self.attempts += 1
        if self.attempts == 1:
            raise ActError("the API server does not answer")
        return TrafficSeen(weights={}, addresses={}, epoch=self.epoch)


@pytest.mark.parametrize(("at_engine", "at_proxy"), [(3, 7), (7, 3), (7, 0)])
async def test_the_epoch_follows_the_newest_of_servers_and_proxy_once_both_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_engine: int, at_proxy: int
) -> None:
    engine, traffic = EngineAwayOnce(), TrafficAwayOnce()
    engine.epoch, traffic.epoch = at_engine, at_proxy
    fakes = {"process": engine, "envoy": traffic}

    def with_fakes(kind: str, name: str, options: Any, **more: Any) -> object:  # noqa: ANN401 - as build
        return fakes.get(name) or build_plugin(kind, name, options, **more)

    monkeypatch.setattr(wiring, "OBSERVE_RETRY_S", 0.0)
    config = loader.parse_config(CONFIG, here=tmp_path, build=with_fakes)

    assert await wiring.read_newest_epoch(config) == 7


class ForbiddenTraffic(FakeTraffic):
    """`refusals`: how often it cannot tell its problems before it can."""

    refusals = 0

    def bind(self, site: Site) -> FakeTraffic:
        del site
        return self

    async def problems(self) -> list[str]:
        self.refusals -= 1
        if self.refusals >= 0:
            raise ActError("list the Pods: forbidden")
        return []


@pytest.mark.parametrize(("refusals", "at_most_s"), [(2, 30.0), (1_000_000, 0.05)])
async def test_a_proxy_that_cannot_tell_its_problems_is_asked_again_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int, at_most_s: float
) -> None:
    traffic = ForbiddenTraffic()
    traffic.refusals = refusals

    def with_fake(kind: str, name: str, options: Any, **more: Any) -> object:  # noqa: ANN401 - as build
        return traffic if name == "envoy" else build_plugin(kind, name, options, **more)

    monkeypatch.setattr(wiring, "OBSERVE_RETRY_S", 0.0)
    monkeypatch.setattr(wiring, "CHECK_S", at_most_s)
    config = loader.parse_config(CONFIG, here=tmp_path, build=with_fake)

    if refusals < 10:
        await wiring.check_traffic(config)
        assert traffic.refusals == -1
    else:
        with pytest.raises(ConfigError, match=r"\[targets.traffic\] chat: list the Pods: forbidden"):
            await wiring.check_traffic(config)


def test_a_daemon_goes_on_from_the_last_entry_if_the_clock_was_set_back(tmp_path: Path) -> None:
    def with_fake(kind: str, name: str, options: Any, **more: Any) -> object:  # noqa: ANN401 - as build
        return FakeEngine() if name == "process" else build_plugin(kind, name, options, **more)

    (tmp_path / "state").mkdir()
    config = loader.parse_config(CONFIG, here=tmp_path, build=with_fake)
    later = utc_now() + timedelta(minutes=30)
    with assemble(config, "advise", above=0, accept_new_journal=True) as (daemon, _):
        daemon.journal.append(JournalEntry(at=later, actor=DAEMON, action="test", why="later"))

    with assemble(config, "advise", above=0) as (daemon, _):
        assert timedelta(milliseconds=-1) <= daemon.now() - later < timedelta(minutes=1)  # entries have ms
        daemon.follow_wall_clock()
        assert daemon.now() < later
