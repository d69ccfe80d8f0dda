"""The command: exit statuses, its socket, and reload."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flettner.tools.docker_proxy.errors import PolicyError
from flettner.tools.docker_proxy.main import listening, main
from tests.unit.docker_proxy.fake_docker import fake_docker

RUN = "import sys; from flettner.tools.docker_proxy.main import main; sys.exit(main())"


def _file(folder: Path, more: str = "") -> Path:
    file = folder / "policy.toml"
    file.write_text(f'[socket]\npath = "{folder}/p.sock"\nengine = "{folder}/e.sock"\n{more}')
    return file


def test_check_accepts_a_well_formed_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", str(_file(tmp_path))]) == 0
    assert "well-formed" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "check"])
def test_an_invalid_policy_prevents_the_start_and_names_the_key(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "-c", str(_file(tmp_path, "[creat]\n"))]) == 2
    assert "policy.toml: creat: no such key" in capsys.readouterr().err


async def test_check_reports_fields_that_a_clone_would_lack(tmp_path: Path) -> None:
    async with fake_docker(tmp_path / "e.sock") as engine:
        engine.containers[0]["HostConfig"] = {"Privileged": True, "Binds": ["/:/host"]}
        engine.containers[0]["NetworkSettings"] = {"Networks": {"bridge": {"Aliases": None}}}
        privileged = await _checked(_file(tmp_path, '[containers]\nadopt = ["vllm"]\n'), "vllm")
        engine.containers[0]["HostConfig"] = {"Privileged": False}
        fitting = await _checked(_file(tmp_path, '[containers]\nadopt = ["vllm"]\n'), "vllm")
        nobody = await _checked(_file(tmp_path), "nobody")

    assert privileged[0] == 1
    assert "vllm: HostConfig.Privileged: must be left empty" in privileged[1]
    assert "vllm: HostConfig.Binds: '/' leads to '/'" in privileged[1]
    assert fitting == (0, "vllm: a twin of it would pass\n")
    assert nobody == (1, "nobody: No such object: nobody\n")


async def _checked(file: Path, container: str) -> tuple[int, str]:
    # The fake engine uses this event loop, so the command runs as a separate process.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, "check", "-c", str(file), container, stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


def test_the_socket_of_a_dead_proxy_is_replaced_and_a_live_one_kept(tmp_path: Path) -> None:
    path, engine = tmp_path / "p.sock", tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with listening(path, engine) as live:
        live.listen()
        with pytest.raises(PolicyError, match="already listens"), listening(path, engine):
            pass
        assert path.is_socket()
    assert not path.exists()


def test_the_proxy_never_listens_on_the_socket_of_the_engine(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "e.sock")

    with pytest.raises(PolicyError, match="own socket"), listening(tmp_path / "link", tmp_path / "e.sock"):
        pass


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[socket.socket]:
    """Receive notifications in place of systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(60)
        yield heard


def test_the_proxy_runs_reloads_and_stops_as_its_unit_expects(tmp_path: Path, notes: socket.socket) -> None:
    file = _file(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "run", "-c", str(file)],
        env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert notes.recv(99) == b"READY=1"
        assert process.stderr is not None
        entries = [json.loads(process.stderr.readline())]
        for more in ("[creat]\n", "[networks]\nhost = true\n"):
            _file(tmp_path, more)
            process.send_signal(signal.SIGHUP)
            entries.append(json.loads(process.stderr.readline()))
        process.terminate()
        assert notes.recv(99) == b"STOPPING=1"
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()
    assert [line["event"] for line in entries] == ["listening", "policy not reloaded", "policy reloaded"]
    assert "creat: no such key" in entries[1]["reason"]
    assert not (tmp_path / "p.sock").exists()
