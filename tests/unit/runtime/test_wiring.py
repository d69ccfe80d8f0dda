"""The daemon built from a config."""

from pathlib import Path
from typing import Any

import pytest

from agent.config import loader
from agent.domain.effects import Route
from agent.domain.errors import ActError
from agent.domain.model import Mode
from agent.domain.ports import Site, TrafficSeen
from agent.domain.state import State
from agent.plugins.loader import build
from agent.runtime import wiring
from agent.runtime.wiring import assemble, find_removed
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
    config = loader.parse(CONFIG, here=tmp_path)
    route = Route(number=1, servers=(), weights={}, fallback="")
    states = {name: State(target=name, route=route) for name in ("chat", "old", "gone")}
    for name in ("chat", "old", "idle"):
        (tmp_path / "state" / name).mkdir(parents=True)

    assert find_removed(config, {**states, "idle": State(target="idle")}) == ["old"]


@pytest.mark.parametrize(("mode", "acts"), [("advise", False), ("approve", True), ("auto", True)])
def test_mode_and_approvers_reach_the_machine_and_the_engine(tmp_path: Path, mode: Mode, acts: bool) -> None:
    engine = FakeEngine()

    def with_fake(kind: str, name: str, options: Any, **more: Any) -> object:  # noqa: ANN401 - as build
        return engine if name == "process" else build(kind, name, options, **more)

    (tmp_path / "state").mkdir()
    config = loader.parse(CONFIG, here=tmp_path, build=with_fake)
    with assemble(config, mode, above=4, accept_new_journal=True) as (daemon, epoch):
        state = daemon.states()["chat"]

    assert (state.mode, state.approval, epoch) == (mode, "other", 5)
    assert engine.site
    assert engine.site.acts is acts


async def test_the_start_waits_for_a_proxy_that_cannot_be_observed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AwayOnce(FakeTraffic):
        asked = 0

        def bind(self, site: Site) -> FakeTraffic:
            del site
            return self

        async def observe(self) -> TrafficSeen | None:
            self.asked += 1
            if self.asked == 1:
                raise ActError("the API server does not answer")
            return TrafficSeen(weights={}, addresses={}, epoch=7)

    def with_fake(kind: str, name: str, options: Any, **more: Any) -> object:  # noqa: ANN401 - as build
        return AwayOnce() if name == "envoy" else build(kind, name, options, **more)

    monkeypatch.setattr(wiring, "OBSERVE_RETRY_S", 0.0)
    config = loader.parse(CONFIG, here=tmp_path, build=with_fake)

    assert await wiring.read_newest_epoch(config) == 7
