"""Launching, observing and retiring servers, with a stub in place of vLLM."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.host import ownership_env
from flettner.actuators.process.plugin import ProcessPlugin
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.vllm_facts.values import Setting
from tests.support.engine_watch import noon, watched
from tests.support.process_rig import SERVER, STUB, Bound, free_ports, pids, site, until

pytestmark = pytest.mark.smoke


async def test_the_command_line_changes_only_where_the_setting_differs(bound: Bound, tmp_path: Path) -> None:
    engine = bound("--max-num-seqs=2", "--enforce-eager", "--max-model-len", "1000", "--model", "m")
    setting: Setting = {"max_num_seqs": 4, "max_model_len": 1000, "model": "m"}

    await engine.launch(Server(name="chat-r1", setting=setting), 60)

    argv = ownership_env.marked(site(tmp_path))["chat-r1"].argv
    port = argv[-1]
    assert argv == (*STUB, "--max-num-seqs=4", "--max-model-len", "1000", "--model", "m", "--port", port)


async def test_keeps_the_model_when_the_setting_does_not_name_it(bound: Bound) -> None:
    engine = bound("--model", "m", "--enforce-eager")

    await engine.launch(Server(name="chat-r1", setting={"max_num_seqs": 2}), 60)

    [server] = await engine.observe()
    assert server.setting == {"model": "m", "max_num_seqs": 2}


async def test_finds_a_server_by_its_own_session_without_its_record(bound: Bound, tmp_path: Path) -> None:
    launched = await bound().launch(SERVER, 60)
    [note] = tmp_path.glob("servers/*.json")
    note.unlink()  # the daemon died between starting it and noting it

    [server] = await bound(epoch=2).observe()

    assert server == launched
    [pid] = pids(tmp_path)
    assert os.getsid(pid) == pid != os.getsid(0)


async def test_the_server_record_is_readable_by_its_owner_only(bound: Bound, tmp_path: Path) -> None:
    await bound("--api-key", "sk-secret").launch(SERVER, 60)

    for file in (tmp_path / "servers").iterdir():
        assert file.stat().st_mode & 0o077 == 0
    note = json.loads((tmp_path / "servers" / "chat-r1.json").read_text())
    assert note["epoch"] == 1
    assert note["pid"] in pids(tmp_path)


async def test_other_targets_and_other_daemons_do_not_see_the_server(bound: Bound, tmp_path: Path) -> None:
    await bound().launch(SERVER, 60)

    for other in (
        Site(target="other", state_dir=tmp_path, epoch=1),
        Site(target="chat", state_dir=tmp_path / "other", epoch=1),
    ):
        assert list(await ProcessPlugin(command=STUB).bind(other).observe()) == []


async def test_does_not_assign_a_port_twice_before_it_is_bound(bound: Bound, tmp_path: Path) -> None:
    ports = free_ports()
    slow = asyncio.create_task(bound("--never-ready", ports=ports).launch(SERVER, 600))
    await until(lambda: pids(tmp_path))

    second = await bound(ports=ports).launch(Server(name="chat-r2", setting={}), 60)

    [first, _] = await bound().observe()
    assert first.address != second.address
    slow.cancel()
    await asyncio.wait([slow])


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        pytest.param(
            ["--no-such-flag", "1"],
            r"exited with code 2: unknown flag.*: stub_vllm.py: error: unrecognized arguments: --no-such",
            id="unknown flag",
        ),
        pytest.param(
            ["--max-num-seqs", "0"],
            r"exited with code 1: .*ValidationError.* SchedulerConfig max_num_seqs Input should be greater",
            id="refused value",
        ),
        pytest.param(
            ["--dies-of-memory"], r"exited with code 1: .*: torch.OutOfMemoryError: CUDA out", id="OOM"
        ),
    ],
)
async def test_reports_the_cause_of_a_failed_start(bound: Bound, flags: list[str], why: str) -> None:
    with pytest.raises(ActError, match=why) as failure:
        await bound(*flags).launch(SERVER, 60)

    assert 1 < len(failure.value.log) <= 30
    assert failure.value.why.startswith("chat-r1 ")


async def test_reports_a_server_killed_during_startup(bound: Bound, tmp_path: Path) -> None:
    launch = asyncio.create_task(bound("--never-ready").launch(SERVER, 600))
    await until(lambda: pids(tmp_path))

    for pid in pids(tmp_path):
        os.kill(pid, signal.SIGKILL)

    with pytest.raises(ActError, match="was killed by SIGKILL") as failure:
        await launch
    assert failure.value.external


async def test_kills_a_starting_server_that_ignores_sigterm_at_its_deadline(
    bound: Bound, tmp_path: Path
) -> None:
    with pytest.raises(ActError, match=r"not healthy within 1\.5 s") as failure:
        await bound("--never-ready", "--engine-core", "--says", "loading").launch(SERVER, 1.5)

    assert failure.value.log == ("loading",)
    assert pids(tmp_path) == set()


@pytest.mark.parametrize(
    "command", [("/no/such/vllm", "serve"), (__file__,)], ids=["missing", "not executable"]
)
async def test_a_command_that_cannot_run_is_an_error_and_a_problem(
    bound: Bound, command: tuple[str, ...]
) -> None:
    engine = bound(command=command)

    [problem] = await engine.problems()
    with pytest.raises(ActError, match="cannot be started"):
        await engine.launch(SERVER, 60)

    assert command[0] in problem


async def test_secrets_reach_the_server_and_nothing_else(bound: Bound, tmp_path: Path) -> None:
    engine = bound(
        "--api-key",
        "sk-secret",
        "--says",
        "key sk-secret token tok-12345 sk-secret",
        "--max-num-seqs",
        "0",
        env={"A_TOKEN": "tok-12345"},
    )

    with pytest.raises(ActError) as failure:
        await engine.launch(SERVER, 60)

    text = repr((failure.value.why, failure.value.log, engine))
    assert "key *** token *** ***" in text
    assert "sk-secret" not in text
    assert "tok-12345" not in text
    assert "tok-12345" in (tmp_path / "servers" / "chat-r1.log").read_text()


async def test_the_server_gets_the_configured_environment_and_folder(bound: Bound, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    await bound(env={"HF_HUB_OFFLINE": "1"}, cwd=str(tmp_path / "work")).launch(SERVER, 60)

    [pid] = pids(tmp_path)
    env = Path(f"/proc/{pid}/environ").read_text().split("\0")
    assert {"HF_HUB_OFFLINE=1", "FLETTNER_SERVER=chat/chat-r1", f"FLETTNER_STATE={tmp_path}"} < set(env)
    assert Path(f"/proc/{pid}/cwd").readlink() == tmp_path / "work"


async def test_stopping_a_server_stops_its_engine_core(bound: Bound, tmp_path: Path) -> None:
    engine = bound("--engine-core")
    server = await engine.launch(SERVER, 60)
    assert len(pids(tmp_path)) == 2

    await engine.retire(server)

    assert pids(tmp_path) == set()
    assert list((tmp_path / "servers").glob("*.json")) == []


async def test_stops_an_engine_core_left_by_a_crash(bound: Bound, tmp_path: Path) -> None:
    engine = bound("--engine-core")
    server = await engine.launch(SERVER, 60)
    os.kill(ownership_env.marked(site(tmp_path))["chat-r1"].process.pid, signal.SIGKILL)
    await until(lambda: not ownership_env.marked(site(tmp_path)))
    assert len(pids(tmp_path)) == 1

    await engine.retire(server)

    assert pids(tmp_path) == set()


async def test_kills_a_server_that_does_not_stop(bound: Bound, tmp_path: Path) -> None:
    engine = bound("--never-stops", stop_s=0.3)
    server = await engine.launch(SERVER, 60)

    await engine.retire(server)

    assert pids(tmp_path) == set()


async def test_a_fenced_launch_keeps_the_server_that_the_newer_daemon_uses(
    bound: Bound, tmp_path: Path
) -> None:
    older = asyncio.create_task(bound("--never-ready").launch(SERVER, 600))
    await until(lambda: ownership_env.read_note(site(tmp_path), SERVER.name))
    begun = pids(tmp_path)
    newer = asyncio.create_task(bound("--never-ready", epoch=2).launch(SERVER, 600))
    await until(lambda: ownership_env.newest_epoch(site(tmp_path), {}) == 2)

    older.cancel()
    await asyncio.wait([older])
    left = pids(tmp_path)
    newer.cancel()
    await asyncio.wait([newer])

    assert left == begun
    assert pids(tmp_path) == set()


async def test_a_fenced_launch_leaves_no_untracked_server(bound: Bound, tmp_path: Path) -> None:
    older = asyncio.create_task(bound("--never-ready").launch(SERVER, 600))
    await until(lambda: pids(tmp_path))
    newer = await bound(epoch=2).launch(Server(name="chat-r2", setting={}), 60)

    older.cancel()
    await asyncio.wait([older])

    assert list(await bound(epoch=2).observe()) == [newer]


async def test_reports_an_exit_with_its_code_and_last_lines(bound: Bound, tmp_path: Path) -> None:
    engine = bound("--says", "ValueError: too bad")
    server = await engine.launch(SERVER, 60)
    reports: list[ServerLost] = []
    watch = asyncio.create_task(engine.watch(server, reports.append, noon))
    await asyncio.sleep(0.2)

    [pid] = pids(tmp_path)
    os.kill(pid, signal.SIGTERM)
    await asyncio.wait_for(watch, 60)

    [lost] = reports
    assert lost.gone
    assert lost.why == "chat-r1 exited with code 0: ValueError: too bad"
    assert not lost.external
    assert lost.log == ("ValueError: too bad",)


async def test_reports_a_server_that_exited_before_the_watch_as_lost(bound: Bound) -> None:
    reports: list[ServerLost] = []

    await bound().watch(SERVER, reports.append, noon)

    assert [(lost.why, lost.gone) for lost in reports] == [("chat-r1 has no process any more", True)]


async def test_ignores_old_log_lines_of_an_unresponsive_server(bound: Bound, tmp_path: Path) -> None:
    engine = bound("--says", "ValueError: old", lost_after=2, health_timeout_s=0.5)
    server = await engine.launch(SERVER, 60)

    async with watched(engine, server) as reports:
        [pid] = pids(tmp_path)
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: reports)

    assert (reports[0].gone, reports[0].log) == (False, ("ValueError: old",))
    assert (
        reports[0].why
        == "chat-r1 failed its health check 2 times in a row: /health does not answer within 0.5 s"
    )


async def test_open_requests_are_running_plus_waiting(bound: Bound) -> None:
    engine = bound("--busy", "2")
    server = await engine.launch(SERVER, 60)

    assert await engine.busy(server) == 3


async def test_a_server_survives_its_daemon(bound: Bound, tmp_path: Path) -> None:
    """In a separate process: the launching daemon exits without a clean-up."""
    first, last = free_ports()
    daemon = f"""
import asyncio, os, pathlib
from flettner.actuators.process.plugin import ProcessPlugin
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
engine = ProcessPlugin(command={STUB!r}, ports=({first}, {last}))
engine = engine.bind(Site(target="chat", state_dir=pathlib.Path({str(tmp_path)!r}), epoch=1))
asyncio.run(engine.launch(Server(name="chat-r1", setting={{"max_num_seqs": 3}}), 60))
os._exit(9)
"""
    ended = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", daemon], check=False)
    assert ended.returncode == 9
    engine = bound(epoch=2)

    [server] = await engine.observe()

    assert server.setting == {"max_num_seqs": 3}
    async with aiohttp.ClientSession() as session, session.get(f"http://{server.address}/health") as answer:
        assert answer.status == 200
    await engine.retire(server)
    assert pids(tmp_path) == set()


def test_a_server_does_not_inherit_the_oom_score_of_the_daemon(tmp_path: Path) -> None:
    """In a separate process, with the OOM score of the daemon's unit where permitted."""
    daemon = """
import contextlib, os, pathlib, signal, sys
from flettner.actuators.host.process_group import spawn
own = pathlib.Path("/proc/self/oom_score_adj")
with contextlib.suppress(PermissionError):
    own.write_text("-500")
argv = [sys.executable, "-c", "import time; time.sleep(600)"]
known = spawn(argv, env={}, cwd="", log=pathlib.Path(sys.argv[1]))
of_server = pathlib.Path("/proc", str(known.pid), "oom_score_adj")
print(own.read_text(), of_server.read_text())
os.kill(known.pid, signal.SIGKILL)
"""
    argv = [sys.executable, "-c", daemon, str(tmp_path / "log")]
    output = subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    of_daemon, of_server = map(int, output.split())
    assert of_server == max(0, of_daemon)
