"""The lock of the state directory has one holder at a time, also after a crash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flettner.agent.domain.errors import JournalError
from flettner.agent.runtime.lock import hold_lock

HOLDER = """
import sys, time
from pathlib import Path
from flettner.agent.runtime.lock import hold_lock
with hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(state_dir: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(state_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_rejected_with_the_pid_of_the_holder(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with (
            pytest.raises(JournalError, match=rf"another flettner works here \(pid {process.pid}\)"),
            hold_lock(tmp_path),
        ):
            pass
        process.kill()
        process.wait()

    with hold_lock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_the_lock_works_on_a_full_disk(tmp_path: Path) -> None:
    unable = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))" + HOLDER
    command = [sys.executable, "-c", unable, str(tmp_path)]

    result = subprocess.run(command, input="", capture_output=True, text=True, check=False)

    assert (result.stdout, result.stderr, result.returncode) == ("held\n", "", 0)
    assert (tmp_path / "lock").read_text() == ""


def test_the_lock_is_free_again_after_use(tmp_path: Path) -> None:
    with hold_lock(tmp_path):
        pass
    with hold_lock(tmp_path):
        pass

    assert (tmp_path / "lock").exists()


def test_the_state_directory_is_private_to_its_owner(tmp_path: Path) -> None:
    state_dir = tmp_path / "var" / "flettner"

    with hold_lock(state_dir):
        assert state_dir.stat().st_mode & 0o777 == 0o700
        assert (state_dir / "lock").stat().st_mode & 0o777 == 0o600


def test_a_started_server_does_not_keep_the_lock(tmp_path: Path) -> None:
    with hold_lock(tmp_path):
        child = subprocess.Popen(["sleep", "60"])
    try:
        with hold_lock(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()


def test_an_unusable_state_directory_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    impossible = tmp_path / "file" / "state"

    with pytest.raises(JournalError, match="file/state: cannot be used as the state"), hold_lock(impossible):
        pass


def test_a_symlink_as_the_lock_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")

    with pytest.raises(JournalError, match="cannot be used"), hold_lock(tmp_path):
        pass

    assert (tmp_path / "victim").read_text() == "precious"
