"""Every engine that can reach a control endpoint changes knobs of a running server in the same way."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from flettner.actuators.process.plugin import ProcessPlugin
from flettner.agent.domain.errors import ActError, DriftError
from flettner.agent.domain.model import HotKnobs, Server
from flettner.agent.domain.ports import Engine, Site
from flettner.vllm_facts.live_limits import SCHEDULER_CLASS
from tests.support.docker_engine_rig import place
from tests.support.fake_engine import FakeEngine
from tests.support.process_rig import free_ports

CAP, CONTROL = "max_num_active_seqs", "FLETTNER_CONTROL"
FLAGS = ("--sim-start-s", "0.2", "--max-num-seqs", "16", "--scheduler-cls", SCHEDULER_CLASS)
SERVER = Server(name="chat-r1", setting={})


class Rig:
    """`folder`: where the sockets are, at any depth."""

    def __init__(self, engine: Engine, restarted: Engine, folder: Path | None = None) -> None:
        self.engine, self.restarted, self.folder = engine, restarted, folder

    def sockets(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_socket()] if self.folder else []


class HotFake(FakeEngine):
    async def launch(self, server: Server, deadline_s: float) -> Server:
        launched = await super().launch(server, deadline_s)
        if launched.name not in self.hot.knobs:
            self.make_hot(launched.name)
        return self.hot.describe(launched)


@pytest.fixture(params=["fake", "process", "process, class added", "docker", "docker, class added"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """`class added`: the flags name the class, and the environment of the first server has no socket."""
    if request.param == "fake":
        fake = HotFake()
        yield Rig(fake, fake)
        return
    engine, _, added = request.param.partition(", ")
    with TemporaryDirectory() as folder:  # pytest's own is longer than the path of a socket may be
        state_dir = Path(folder, "chat")
        if engine == "docker":
            async with place(state_dir) as here:
                env = [] if added else [f"{CONTROL}=/run/vllm/control.sock"]
                await here.keep(*FLAGS, env=env, binds=[f"{folder}:/run/vllm"])
                yield Rig(here.engine(), here.engine(epoch=2), Path(folder))
            return
        options = ProcessPlugin(
            command=(sys.executable, "-m", "flettner.simulator.server", "--model", "tiny", *FLAGS),
            env={} if added else {CONTROL: f"{folder}/control.sock"},
            ports=free_ports(),
        )
        first, second = (options.bind(Site(target="chat", state_dir=state_dir, epoch=n)) for n in (1, 2))
        yield Rig(first, second, Path(folder))
        await second.retire(SERVER)


async def test_a_launched_server_has_hot_knobs(rig: Rig) -> None:
    launched = await rig.engine.launch(SERVER, 60)

    assert isinstance(launched.hot, HotKnobs)
    assert launched.hot.limits[CAP][0] == 1
    assert launched.hot.number is None
    assert [server.hot for server in await rig.restarted.observe()] == [launched.hot]


async def test_a_value_without_a_lease_is_seen_by_the_next_daemon(rig: Rig) -> None:
    launched = await rig.engine.launch(SERVER, 60)

    await rig.engine.set_knobs(launched, {CAP: 3}, (1, 5))

    [server] = await rig.restarted.observe()
    assert server.setting == {**launched.setting, CAP: 3}
    assert server.hot is not None
    assert server.hot.number == (1, 5)


async def test_the_end_of_a_lease_brings_back_the_value_before(rig: Rig) -> None:
    launched = await rig.engine.launch(SERVER, 60)
    await rig.engine.set_knobs(launched, {CAP: 3}, (1, 5))

    await rig.engine.set_knobs(launched, {CAP: 7}, (1, 6), 0.2)
    await asyncio.sleep(0.3)

    [server] = await rig.engine.observe()
    assert server.setting[CAP] == 3
    with pytest.raises(DriftError):
        await rig.engine.set_knobs(launched, {CAP: 7}, (1, 5))


async def test_a_newer_daemon_keeps_an_older_one_from_changing_anything(rig: Rig) -> None:
    launched = await rig.engine.launch(SERVER, 60)
    await rig.restarted.set_knobs(launched, {CAP: 3}, (2, 1))

    with pytest.raises(DriftError):
        await rig.engine.set_knobs(launched, {CAP: 7}, (1, 999))

    [server] = await rig.restarted.observe()
    assert server.setting[CAP] == 3


async def test_the_epoch_of_values_counts_where_a_server_carries_no_newer_one(rig: Rig) -> None:
    launched = await rig.engine.launch(SERVER, 60)
    await rig.restarted.set_knobs(launched, {CAP: 3}, (7, 1))

    assert await rig.engine.newest_epoch() == 7


async def test_a_retired_server_leaves_no_socket(rig: Rig) -> None:
    launched = await rig.engine.launch(SERVER, 60)
    assert len(rig.sockets()) == (0 if isinstance(rig.engine, HotFake) else 1)

    await rig.engine.retire(launched)

    assert rig.sockets() == []


async def test_what_the_server_refuses_changes_nothing(rig: Rig) -> None:
    launched = await rig.engine.launch(SERVER, 60)

    for values in ({CAP: 0}, {CAP: 10**6}, {"block_size": 32}):
        with pytest.raises(ActError):
            await rig.engine.set_knobs(launched, values, (1, 5))

    assert [server.setting for server in await rig.engine.observe()] == [launched.setting]
