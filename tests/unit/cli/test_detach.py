"""`flettner detach` prints the way back for processes, which go on without flettner."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from flettner.actuators.host import ownership_env
from flettner.actuators.host.procfs import process as process_of
from flettner.agent.domain.ports import Site
from flettner.tools.cli.dispatch import main

CONFIG = """
[agent]
state_dir = "{folder}/state"
[api]
tokens_file = "tokens"
[[targets]]
name = "chat"
[targets.engine]
kind = "process"
command = ["vllm", "serve", "m", "--max-num-seqs", "4", "--port", "8000", "--api-key", "hush-hush-hush"]
[targets.traffic]
listen = "127.0.0.1:8080"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "flettner.toml"
    file.write_text(CONFIG.format(folder=tmp_path), encoding="utf-8")
    return file


def test_prints_the_command_in_force_the_old_address_and_what_to_end(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(target="chat", state_dir=tmp_path / "state" / "chat", epoch=3)
    site.state_dir.mkdir(parents=True)
    env = {**os.environ, **ownership_env.marks(site, "chat-r1")}
    with subprocess.Popen(["/bin/sleep", "60"], env=env, start_new_session=True) as server:
        found = process_of(server.pid)
        assert found is not None
        argv = ("vllm", "serve", "m", "--max-num-seqs", "16", "--port", "8101", "--api-key", "hush-hush-hush")
        note = ownership_env.OwnershipNote(
            pid=server.pid, started=found.started, argv=argv, port=8101, epoch=3
        )
        ownership_env.prepare_folder(site)
        ownership_env.write_note(site, "chat-r1", note)
        try:
            assert main(["detach", str(config)]) == 0
        finally:
            server.send_signal(signal.SIGKILL)

    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("chat: 1. start your server with the flags in force")
    assert "vllm serve m --max-num-seqs 16 --port 8000" in first
    assert "hush" not in first
    assert second == "chat: 2. when it serves, point the clients at 127.0.0.1:8000"
    assert third == f"chat: 3. end flettner's server chat-r1: kill {server.pid}"


def test_says_that_nothing_is_left_where_nothing_runs(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["detach", str(config)]) == 0
    assert capsys.readouterr().out == "chat: nothing to remove\n"
