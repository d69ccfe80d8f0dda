"""A third-party server: adopted, cloned, watched, and retired after its replacement."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flettner.actuators.host import process_group, procfs
from flettner.actuators.process.adopted import may_signal, obstacle_to_ending
from flettner.actuators.process.engine import ProcessEngine
from flettner.actuators.process.plugin import ProcessPlugin
from flettner.actuators.process.watch import until_gone
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.primitives.address import Address
from tests.support.engine_watch import watched
from tests.support.ports import free_port
from tests.support.process_rig import STUB, free_ports, until


class ThirdParty:
    """A manually started stub with a child process and its own environment."""

    def __init__(self, *, leads: bool) -> None:
        self.port = free_port()
        self.url = f"http://localhost:{self.port}"
        flags = ("--max-num-seqs", "2", "--engine-core", "--port", str(self.port))
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "NOTIFY_SOCKET": "/run/x"}
        self.process = subprocess.Popen([*STUB, *flags], start_new_session=leads, env=env)
        while not procfs.find_listener(self.port):
            self.process.poll()
        process = procfs.process(self.process.pid)
        assert process
        self.family = procfs.with_descendants([process])

    def left(self) -> list[procfs.Process]:
        self.process.poll()
        return [process for process in self.family if procfs.runs(process)]

    def end(self) -> None:
        for process in self.left():
            os.kill(process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(params=[True, False], ids=["leads its group", "in our group"])
def third_party(request: pytest.FixtureRequest) -> Iterator[ThirdParty]:
    third_party = ThirdParty(leads=request.param)
    yield third_party
    third_party.end()


def engine(
    url: str, state_dir: Path, command: tuple[str, ...] = (), *, patience_s: float = 0.5
) -> ProcessEngine:
    options = ProcessPlugin(
        command=command,
        serving=url,
        ports=free_ports(),
        health_every_s=0.1,
        health_timeout_s=patience_s,
        lost_after=2,
        stop_s=5.0,
    )
    return options.bind(Site(target="chat", state_dir=state_dir, epoch=1))


async def test_adopts_a_running_server_with_its_setting(third_party: ThirdParty, tmp_path: Path) -> None:
    adopting = engine(third_party.url, tmp_path)

    assert list(await adopting.problems()) == []
    assert await adopting.newest_epoch() == 0
    assert not list(tmp_path.iterdir()), "a check and a first start would find traces of an earlier daemon"
    [server] = await adopting.observe()

    setting = {"max_num_seqs": 2, "engine_core": True}
    address = f"127.0.0.1:{third_party.port}"
    assert server == Server(name="chat-r0", setting=setting, address=address, ours=False)
    assert await adopting.busy(server) == 1


async def test_an_adopted_server_tells_by_its_environment_that_it_runs_on_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    third_party = ThirdParty(leads=True)
    try:
        [server] = await engine(third_party.url, tmp_path).observe()
    finally:
        third_party.end()

    assert server.on_cpus


async def test_a_preflight_of_an_adopted_server_says_that_its_port_goes_dead(
    third_party: ThirdParty, tmp_path: Path
) -> None:
    adopting = engine(third_party.url, tmp_path)
    [blue] = await adopting.observe()

    adopted = await adopting.preflight([blue], {**blue.setting, "max_num_seqs": 4}, "auto")
    ours = await adopting.preflight([replace(blue, ours=True)], blue.setting, "auto")

    note, live, start = adopted.notes
    assert "--scheduler-cls" in live
    assert note.startswith(f"a promotion ends the process at {blue.address}: nothing answers there any more")
    assert ours.notes == (start,)
    assert "no start of this program and model was measured yet" in start


async def test_launches_servers_like_an_adopted_one_that_has_exited(
    third_party: ThirdParty, tmp_path: Path
) -> None:
    adopting = engine(third_party.url, tmp_path)
    [blue] = await adopting.observe()
    await adopting.retire(blue)
    green = Server(name="chat-r1", setting={**blue.setting, "max_num_seqs": 4, "engine_core": None})

    launched = await engine(third_party.url, tmp_path).launch(green, 60)

    [server] = await adopting.observe()
    assert (server.name, server.setting, server.ours) == ("chat-r1", {"max_num_seqs": 4}, True)
    listener = procfs.find_listener(int(launched.address.rpartition(":")[2]))
    assert listener
    env = procfs.environment(listener.pid)
    assert env["HF_HUB_OFFLINE"] == "1"
    assert "NOTIFY_SOCKET" not in env
    assert list(await adopting.problems()) == []
    await adopting.retire(launched)


async def test_retires_an_adopted_server_with_its_child_processes_only(
    third_party: ThirdParty, tmp_path: Path
) -> None:
    adopting = engine(third_party.url, tmp_path)
    [server] = await adopting.observe()
    assert len(third_party.left()) == 2

    await adopting.retire(server)
    await adopting.retire(server)

    assert third_party.left() == []
    assert list(await adopting.observe()) == []


@pytest.mark.parametrize(
    ("number", "gone", "why"),
    [(signal.SIGKILL, True, "exited"), (signal.SIGSTOP, False, "failed its health check")],
)
async def test_reports_the_loss_of_an_adopted_server(
    third_party: ThirdParty, tmp_path: Path, number: signal.Signals, gone: bool, why: str
) -> None:
    adopting = engine(third_party.url, tmp_path)
    [server] = await adopting.observe()

    async with watched(adopting, server) as reports:
        os.kill(third_party.process.pid, number)
        await asyncio.wait_for(until(lambda: reports), 60)

    [lost] = reports
    assert (lost.server, lost.gone) == ("chat-r0", gone)
    assert lost.why.startswith(f"chat-r0 {why}")


async def test_a_server_without_a_visible_process_is_gone_when_it_refuses_connections(
    third_party: ThirdParty,
) -> None:
    silences: list[str] = []
    probe = OpenAiProbe(address=f"127.0.0.1:{third_party.port}")
    watch = asyncio.create_task(
        until_gone(probe, None, silences.append, every_s=0.1, timeout_s=0.5, misses=2)
    )

    os.kill(third_party.process.pid, signal.SIGSTOP)
    await asyncio.wait_for(until(lambda: silences), 60)
    assert not watch.done()
    os.kill(third_party.process.pid, signal.SIGKILL)

    assert "refused 2 connections" in await asyncio.wait_for(watch, 60)
    assert len(silences) == 1


async def test_a_busy_server_is_observed_while_it_listens(third_party: ThirdParty, tmp_path: Path) -> None:
    adopting = engine(third_party.url, tmp_path)
    [server] = await adopting.observe()

    os.kill(third_party.process.pid, signal.SIGSTOP)
    assert list(await adopting.observe()) == [server]
    assert list(await engine(third_party.url, tmp_path / "new").observe()) == [server]

    os.kill(third_party.process.pid, signal.SIGKILL)
    third_party.process.wait()
    assert list(await adopting.observe()) == []


async def test_an_unresponsive_process_with_the_inherited_socket_is_not_the_server(
    third_party: ThirdParty, tmp_path: Path
) -> None:
    """Like a forked engine core shortly after a crash of the API server."""
    adopting = engine(third_party.url, tmp_path)
    assert await adopting.observe()
    third_party.end()
    with socket.create_server(("127.0.0.1", third_party.port)):
        assert list(await adopting.observe()) == []


async def test_a_process_without_a_health_endpoint_is_no_server(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(free_port())]
    other = subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        await asyncio.wait_for(until(lambda: procfs.find_listener(int(argv[-1]))), 60)
        adopting = engine(f"http://127.0.0.1:{argv[-1]}", tmp_path, STUB, patience_s=60.0)

        assert list(await adopting.observe()) == []
        [problem] = await adopting.problems()
    finally:
        other.kill()
        other.wait()

    assert "/health answers 404" in problem


@contextmanager
def as_another_user() -> Iterator[None]:
    os.seteuid(54321)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_server_of_another_user_cannot_be_retired(third_party: ThirdParty) -> None:
    address = Address("127.0.0.1", third_party.port)
    assert may_signal(third_party.family[0])
    assert obstacle_to_ending(address) == ""
    first = procfs.process(1)
    assert first
    if os.geteuid() != 0:  # then process 1 belongs to another user
        assert not may_signal(first)
        return
    child = subprocess.Popen(["/bin/sleep", "600"], user=12345)
    process = procfs.process(child.pid)
    assert process

    with as_another_user():
        signalled, why = may_signal(process), obstacle_to_ending(address)
    child.kill()
    child.wait()

    assert not signalled
    assert "cannot be seen (belongs to user 0): its flags are known from `command` only, and flettner" in why


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
async def test_a_server_of_another_user_can_be_watched(third_party: ThirdParty) -> None:
    adopting = ProcessPlugin(serving=third_party.url, command=(*STUB, "--max-num-seqs", "2"))
    advising = adopting.bind(Site(target="chat", state_dir=Path("/no/folder"), epoch=1, acts=False))

    with as_another_user():
        problems, obstacles = await advising.problems(), await advising.obstacles()
        [server] = await advising.observe()

    assert (list(problems), server.setting["max_num_seqs"]) == ([], 2)
    assert "cannot be seen (belongs to user 0)" in obstacles[-1]


async def test_a_missing_server_to_adopt_is_a_problem(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"

    with_command = await engine(url, tmp_path, STUB).problems()
    without = await engine(url, tmp_path).problems()

    assert [url in problem for problem in with_command] == [True]
    assert len(without) == 2
    with pytest.raises(ActError, match="write command"):
        await engine(url, tmp_path).launch(Server(name="chat-r1", setting={}), 60)


async def test_does_not_adopt_a_launched_server(tmp_path: Path) -> None:
    first = ProcessPlugin(command=STUB, ports=free_ports()).bind(
        Site(target="chat", state_dir=tmp_path, epoch=1)
    )
    launched = await first.launch(Server(name="chat-r1", setting={}), 60)

    servers = await engine(f"http://{launched.address}", tmp_path).observe()

    assert [(server.name, server.ours) for server in servers] == [("chat-r1", True)]
    await first.retire(launched)


def test_identifies_a_running_process_by_its_command_line(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import time; time.sleep(600)", "a b", ""]
    process = process_group.spawn(argv, env={"A": "b=c"}, cwd="", log=tmp_path / "log")

    assert process.parent == os.getpid()
    assert process.pid == process.group == process.session
    assert procfs.runs(process)
    assert procfs.words(process.pid)[-2:] == ["a b", ""]
    assert procfs.environment(process.pid) == {"A": "b=c"}

    os.kill(process.pid, signal.SIGKILL)
    while (code := process_group.exit_code(process)) is None:
        time.sleep(0.01)
    assert code == -signal.SIGKILL
    assert procfs.process(process.pid) is None
    assert not procfs.runs(process)
    assert procfs.words(process.pid) == []
