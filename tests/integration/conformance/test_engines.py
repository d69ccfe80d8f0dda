"""The conformance suite of all engines, including the fake one."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import docker
import pytest

from flettner.actuators.docker.engine import DockerEngine
from flettner.actuators.docker.registry import container_name
from flettner.actuators.host import ownership_env
from flettner.actuators.kubernetes.engine import KubernetesEngine
from flettner.actuators.kubernetes.labels import object_name
from flettner.actuators.kubernetes.plugin import KubernetesPlugin
from flettner.actuators.process.engine import ProcessEngine
from flettner.actuators.process.plugin import ProcessPlugin
from flettner.agent.domain.errors import ActError, FencedError
from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.model import Adapter, PreflightResult, Server
from flettner.agent.domain.ports import Engine, Site
from flettner.agent.quality.comparison import compare, flaw_of
from flettner.performance_model.iteration_log import parse_iterations
from tests.support.docker_engine_rig import EngineRig, place
from tests.support.fake_engine import FakeEngine
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.manifests import container, deployment
from tests.support.kubernetes.namespace import Namespace
from tests.support.process_rig import STUB, free_ports

ADAPTERS = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
SETTING = {"max_num_seqs": 8, "enforce_eager": True}


def noon() -> datetime:
    return datetime(2025, 11, 21, 12, tzinfo=UTC)


async def within(seconds: float, holds: Callable[[], object]) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not holds():
                await asyncio.sleep(0.05)
            return True
    return False


class Rig(Protocol):
    """An engine, with variants that fail."""

    @property
    def engine(self) -> Engine: ...

    def restarted(self) -> Engine:
        """The engine as a new daemon binds it."""
        ...

    def slow(self) -> Engine:
        """An engine whose servers never become ready."""
        ...

    def failing(self) -> Engine:
        """An engine whose servers exit at their start."""
        ...

    def die(self, name: str) -> None: ...

    def hang(self, name: str) -> None: ...

    def wake(self, name: str) -> None: ...


class FakeRig:
    def __init__(self) -> None:
        self.engine = FakeEngine().bind(Site(target="chat", state_dir=Path("unused"), epoch=1))
        self.die = self.engine.die
        self.hang = self.engine.hang
        self.wake = self.engine.wake

    def restarted(self) -> FakeEngine:
        return self.engine

    def slow(self) -> FakeEngine:
        self.engine.takes_s = 3600
        return self.engine

    def failing(self) -> FakeEngine:
        self.engine.next_error = ActError("exited with code 1", ("its last line",))
        return self.engine


class ProcessRig:
    def __init__(self, state_dir: Path) -> None:
        self.site = Site(target="chat", state_dir=state_dir, epoch=1)
        self.engine = self._bound(1)

    def restarted(self) -> ProcessEngine:
        return self._bound(2)

    def slow(self) -> ProcessEngine:
        return self._bound(1, "--never-ready")

    def failing(self) -> ProcessEngine:
        return self._bound(1, "--no-such-flag")

    def die(self, name: str) -> None:
        os.kill(ownership_env.marked(self.site)[name].process.pid, signal.SIGKILL)

    def hang(self, name: str) -> None:
        os.kill(ownership_env.marked(self.site)[name].process.pid, signal.SIGSTOP)

    def wake(self, name: str) -> None:
        os.kill(ownership_env.marked(self.site)[name].process.pid, signal.SIGCONT)

    def _bound(self, epoch: int, *flags: str) -> ProcessEngine:
        engine = ProcessPlugin(
            command=(*STUB, *flags),
            ports=free_ports(),
            health_every_s=0.1,
            health_timeout_s=0.5,
            lost_after=2,
            stop_s=5.0,
        )
        return engine.bind(Site(target="chat", state_dir=self.site.state_dir, epoch=epoch))


class DockerRig:
    """An engine that clones a retired container."""

    def __init__(self, place: EngineRig) -> None:
        self._place = place
        self._api = docker.APIClient(version="auto")
        self.engine = place.engine()

    def restarted(self) -> DockerEngine:
        return self._place.engine(epoch=2)

    def slow(self) -> DockerEngine:
        self._all_with("--sim-start-s=3600")
        return self.engine

    def failing(self) -> DockerEngine:
        self._all_with("--no-such-flag")
        return self.engine

    def die(self, name: str) -> None:
        self._api.kill(self._container(name), "SIGKILL")

    def hang(self, name: str) -> None:
        self._api.pause(self._container(name))

    def wake(self, name: str) -> None:
        self._api.unpause(self._container(name))

    def close(self) -> None:
        self._api.close()

    def _container(self, name: str) -> str:
        return container_name(self._place.site, name)

    def _all_with(self, flag: str) -> None:
        self._place.change_kept("Config", Cmd=[flag])


@asynccontextmanager
async def containers(state_dir: Path) -> AsyncIterator[Rig]:
    async with place(state_dir) as here:
        await here.keep("--sim-start-s=0.2", env=[f"{name}={value}" for name, value in ADAPTERS.items()])
        rig = DockerRig(here)
        yield rig
        rig.close()


class KubernetesRig:
    """An engine that copies a Deployment that is scaled to 0."""

    def __init__(self, here: Namespace, state_dir: Path) -> None:
        self._here, self._state_dir = here, state_dir
        self.engine = self._bound("vllm", 1)

    def restarted(self) -> KubernetesEngine:
        return self._bound("vllm", 2)

    def slow(self) -> KubernetesEngine:
        return self._bound("slow", 1)

    def failing(self) -> KubernetesEngine:
        return self._bound("failing", 1)

    def die(self, name: str) -> None:
        self._signal(name, signal.SIGKILL)

    def hang(self, name: str) -> None:
        self._signal(name, signal.SIGSTOP)

    def wake(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        self._here.node.pod(object_name(self._site(1), name)).container().signal(number)

    def _site(self, epoch: int) -> Site:
        return Site(target="chat", state_dir=self._state_dir, epoch=epoch)

    def _bound(self, deployment: str, epoch: int) -> KubernetesEngine:
        options = KubernetesPlugin(
            deployments=(deployment,),
            kubeconfig=str(self._here.cluster.kubeconfig()),
            namespace=self._here.name,
            health_every_s=0.1,
            health_timeout_s=0.5,
            lost_after=2,
        )
        return options.bind(self._site(epoch))


@asynccontextmanager
async def deployments(cluster: Cluster, state_dir: Path) -> AsyncIterator[Rig]:
    env = [{"name": name, "value": value} for name, value in ADAPTERS.items()]
    patterns = {"vllm": "--sim-start-s=0.2", "slow": "--sim-start-s=3600", "failing": "--no-such-flag"}
    async with Namespace(cluster) as here:
        for name, flag in patterns.items():
            await here.create("deployments", deployment(name, container(flag, env=env), replicas=0))
        yield KubernetesRig(here, state_dir)


@pytest.fixture(params=["fake", "process", "docker", "kubernetes"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    if request.param == "kubernetes":
        async with deployments(request.getfixturevalue("own_cluster"), tmp_path) as rig:
            yield rig
        return
    if request.param == "docker":
        async with containers(tmp_path) as rig:
            yield rig
        return
    rig = FakeRig() if request.param == "fake" else ProcessRig(tmp_path)
    yield rig
    for server in await rig.engine.observe():
        await rig.restarted().retire(server)


async def test_a_working_engine_has_no_problems(rig: Rig) -> None:
    assert list(await rig.engine.problems()) == []
    assert list(await rig.engine.observe()) == []


async def test_observes_a_launched_server_with_the_requested_setting(rig: Rig) -> None:
    launched = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)

    assert launched.address
    assert (launched.name, launched.setting, launched.ours) == ("chat-r1", SETTING, True)
    assert list(await rig.engine.observe()) == [launched]
    assert list(await rig.restarted().observe()) == [launched]


async def test_the_newest_epoch_is_that_of_the_daemon_that_launched_a_server(rig: Rig) -> None:
    await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)

    assert await rig.restarted().newest_epoch() == 1


async def test_a_repeated_launch_returns_the_same_server(rig: Rig) -> None:
    server = Server(name="chat-r1", setting=SETTING)

    first = await rig.engine.launch(server, 60)
    again = await rig.engine.launch(server, 60)
    after_a_restart = await rig.restarted().launch(server, 60)

    assert first == again == after_a_restart
    assert len(await rig.engine.observe()) == 1


async def test_concurrent_launches_return_the_same_server(rig: Rig) -> None:
    server = Server(name="chat-r1", setting=SETTING)

    first, second = await asyncio.gather(rig.engine.launch(server, 60), rig.engine.launch(server, 60))

    assert first == second
    assert list(await rig.engine.observe()) == [first]


async def test_two_servers_have_two_addresses(rig: Rig) -> None:
    async with asyncio.TaskGroup() as group:
        blue = group.create_task(rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60))
        green = group.create_task(rig.engine.launch(Server(name="chat-r2", setting=SETTING), 60))

    assert blue.result().address != green.result().address
    assert {server.name for server in await rig.engine.observe()} == {"chat-r1", "chat-r2"}


async def test_omits_the_flag_of_a_knob_that_is_none(rig: Rig) -> None:
    await rig.engine.launch(Server(name="chat-r1", setting={**SETTING, "max_model_len": None}), 60)

    [server] = await rig.engine.observe()
    assert server.setting == SETTING


async def test_retiring_a_server_is_idempotent(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)

    await rig.engine.retire(server)
    await rig.engine.retire(server)

    assert list(await rig.engine.observe()) == []
    assert await rig.engine.busy(server) is None


@pytest.mark.parametrize("rig", ["process", "docker", "kubernetes"], indirect=True)
async def test_a_fenced_daemon_starts_and_stops_nothing(rig: Rig) -> None:
    """The fake engine belongs to one daemon."""
    older, newer = rig.engine, rig.restarted()
    server = await newer.launch(Server(name="chat-r1", setting=SETTING), 60)

    for act in (
        lambda: older.launch(Server(name="chat-r2", setting={}), 60),
        lambda: older.stop(server),
        lambda: older.retire(server),
    ):
        with pytest.raises(FencedError, match=r"a newer daemon \(epoch 2\)"):
            await act()

    assert list(await older.observe()) == [server]


async def test_starts_a_stopped_server_with_the_same_setting(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)

    await rig.engine.stop(server)
    await rig.engine.stop(server)
    assert list(await rig.engine.observe()) == []
    assert list(await rig.restarted().observe()) == []
    again = await rig.restarted().launch(server, 60)

    assert (again.name, again.setting) == ("chat-r1", SETTING)
    assert list(await rig.restarted().observe()) == [again]


async def test_a_stopped_server_can_be_retired(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)

    await rig.engine.stop(server)
    await rig.engine.retire(server)

    assert list(await rig.engine.observe()) == []
    again = await rig.engine.launch(Server(name="chat-r1", setting={}), 60)
    assert dict(again.setting) != SETTING


async def test_a_preflight_reports_the_effect_of_a_change(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)

    preflight = await rig.engine.preflight([server], {**SETTING, "max_num_seqs": 9}, "auto")

    assert isinstance(preflight, PreflightResult)
    assert preflight.problem or preflight.why
    assert list(await rig.engine.observe()) == [server]


async def test_a_server_that_exits_at_its_start_is_an_error_and_leaves_nothing(rig: Rig) -> None:
    with pytest.raises(ActError) as failure:
        await rig.failing().launch(Server(name="chat-r1", setting={}), 60)

    assert "exited with code" in failure.value.why
    assert failure.value.log
    assert list(await rig.engine.observe()) == []


async def test_a_server_past_its_deadline_is_an_error_and_leaves_nothing(rig: Rig) -> None:
    with pytest.raises(ActError):
        await rig.slow().launch(Server(name="chat-r1", setting={}), 0.5)

    assert list(await rig.engine.observe()) == []


async def test_a_cancelled_launch_leaves_nothing(rig: Rig) -> None:
    launch = asyncio.create_task(rig.slow().launch(Server(name="chat-r1", setting={}), 600))
    await asyncio.sleep(0.5)

    launch.cancel()
    await asyncio.wait([launch])

    assert launch.cancelled()
    assert list(await rig.engine.observe()) == []


async def test_warms_up_a_server_and_reports_its_open_requests(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)

    await rig.engine.warm_up(server, 5, 60)

    assert await rig.engine.busy(server) is not None


async def test_loads_adapters_as_clients_do_and_says_which_a_server_refuses(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)
    sql, legal = Adapter(name="sql", path="/usr"), Adapter(name="legal", path="/etc")  # folders that all have
    newer = Adapter(name="sql", path="/var")
    missing = Adapter(name="tax", path="/adapters/missing")

    assert await rig.engine.adapters(server) == ()
    assert not await rig.engine.put_adapters(server, [sql, legal])
    assert not await rig.engine.put_adapters(server, [sql, legal]), "it serves both"
    assert await rig.engine.adapters(server) == (legal, sql)
    (refused,) = await rig.engine.put_adapters(server, [newer, missing], unload=["legal"])

    assert "tax" in refused
    assert await rig.engine.adapters(server) == (newer,)


async def test_the_adapters_of_a_dead_server_are_not_known(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)
    rig.die("chat-r1")

    assert await rig.engine.adapters(server) is None
    with pytest.raises(ActError):
        await rig.engine.put_adapters(server, [Adapter(name="sql", path="/adapters/sql")])


async def test_the_last_lines_of_a_servers_log_can_be_read_and_shown(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)
    await rig.engine.warm_up(server, 5, 60)

    first = await rig.engine.log(server)
    after_a_restart = await rig.restarted().log(server)

    assert first
    assert all(0 < len(line) <= 500 and line.replace("\t", " ").isprintable() for line in first)
    assert set(first) & set(after_a_restart)


async def test_the_steps_in_a_servers_log_can_be_read(rig: Rig) -> None:
    setting = {**SETTING, "enable_logging_iteration_details": True}
    server = await rig.engine.launch(Server(name="chat-r1", setting=setting), 60)
    await rig.engine.warm_up(server, 5, 60)

    steps = list(parse_iterations(await rig.restarted().step_log(server)))

    assert len(steps) >= 5
    assert any(step.prefills for step in steps)


async def test_an_unknown_server_has_no_log(rig: Rig) -> None:
    unknown = Server(name="chat-r9", setting=SETTING)

    assert await rig.engine.log(unknown) == ()
    assert await rig.engine.step_log(unknown) == ()


async def test_the_log_of_an_exited_server_is_no_error(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)
    rig.die("chat-r1")
    of_a_dead_one = await rig.engine.log(server)
    await rig.restarted().retire(server)

    assert isinstance(of_a_dead_one, tuple)
    assert isinstance(await rig.engine.log(server), tuple)


async def test_golden_answers_are_repeatable(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)
    prompts = [f"prompt number {number}" for number in range(12)]

    first = await rig.engine.answers(server, prompts, 60)
    again = await rig.restarted().answers(server, prompts, 60)

    assert len(first) == len(prompts)
    assert all(answer.text and answer.length and not flaw_of(answer) for answer in first)
    assert compare(first, again, first).same == 1.0


async def test_golden_prompts_fail_on_a_dead_server(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)
    rig.die("chat-r1")

    with pytest.raises(ActError):
        await rig.engine.answers(server, ["one", "two"], 60)


async def test_reports_a_dead_server_as_gone(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)
    said: list[ServerLost] = []
    watch = asyncio.create_task(rig.engine.watch(server, said.append, noon))
    await asyncio.sleep(0.3)
    assert said == []

    rig.die("chat-r1")
    await asyncio.wait_for(watch, 60)

    [lost] = said
    assert (lost.server, lost.at, lost.gone) == ("chat-r1", noon(), True)
    assert lost.why.startswith("chat-r1 ")


async def test_reports_a_hanging_server_each_time_and_not_as_gone(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)
    said: list[ServerLost] = []
    watch = asyncio.create_task(rig.engine.watch(server, said.append, noon))

    rig.hang("chat-r1")
    assert await within(60, lambda: said)
    assert not await within(2, lambda: len(said) > 1 or watch.done())
    async with asyncio.timeout(120):
        again = False
        while not again:  # on a busy machine another probe may fail first
            rig.wake("chat-r1")
            await asyncio.sleep(0.5)
            rig.hang("chat-r1")
            again = await within(5, lambda: len(said) > 1)
    rig.die("chat-r1")
    await asyncio.wait_for(watch, 60)

    assert [lost.gone for lost in said] == [False, False, True]


async def test_observes_a_hanging_server(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)

    rig.hang("chat-r1")

    assert list(await rig.engine.observe()) == [server]
    rig.wake("chat-r1")


async def test_a_warm_up_fails_on_a_dead_server(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)
    rig.die("chat-r1")

    with pytest.raises(ActError):
        await rig.engine.warm_up(server, 3, 60)


async def test_cancelling_a_watch_raises_no_error(rig: Rig) -> None:
    server = await rig.engine.launch(Server(name="chat-r1", setting=SETTING), 60)
    said: list[ServerLost] = []
    watch = asyncio.create_task(rig.engine.watch(server, said.append, noon))
    await asyncio.sleep(0.2)

    watch.cancel()
    await asyncio.wait([watch])

    assert watch.cancelled()
    assert said == []
