"""Of two daemons that write Envoy's files, the older one never overwrites the newer one."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.actuators.envoy import fence as xds_fence
from flettner.actuators.envoy.fence import Fence, Writer
from flettner.actuators.envoy.files import XdsFiles
from flettner.agent.domain.errors import ActError, FencedError

OLD, NEW = Writer(epoch=1, process="a"), Writer(epoch=2, process="b")
DEADLINE_S = 60.0


def content(writer: Writer, number: int = 1) -> bytes:
    return f'{{"version_info": "{writer.epoch}.{number}.1", "resources": []}}'.encode()


def put(files: XdsFiles, writer: Writer, number: int = 1) -> bytes | None:
    return asyncio.run(files.put("rds", content(writer, number), writer=writer))


@pytest.fixture
def files(tmp_path: Path) -> XdsFiles:
    return XdsFiles(tmp_path / "envoy", "chat")


def test_the_older_of_two_concurrent_writers_never_overwrites_the_newer(
    files: XdsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xds_fence, "LOCKED_FOR_S", DEADLINE_S)
    both = threading.Barrier(2)

    def written(writer: Writer) -> list[bytes | None]:
        """The content that each write replaced, until the writer is fenced."""
        replaced: list[bytes | None] = []
        both.wait(DEADLINE_S)
        for number in range(100):
            try:
                replaced.append(put(files, writer, number))
            except FencedError:
                break
        return replaced

    with ThreadPoolExecutor(2) as threads:
        old, new = threads.map(written, (OLD, NEW))

    assert len(new) == 100
    assert not [document for document in old if document and document.startswith(b'{"version_info": "2.')]
    assert files.path("rds").read_bytes() == content(NEW, 99)


STUBBORN = """
import asyncio, sys
from pathlib import Path
from flettner.actuators.envoy.fence import Writer
from flettner.actuators.envoy.files import XdsFiles
from flettner.agent.domain.errors import FencedError

files = XdsFiles(Path(sys.argv[1]), "chat")
for epoch in map(int, sys.stdin):
    writer, number = Writer(epoch=epoch, process="old"), 0
    try:
        while True:
            number += 1
            text = '{"version_info": "%d.%d.1", "resources": []}' % (epoch, number)
            asyncio.run(files.put("rds", text.encode(), writer=writer))
    except FencedError:
        print(epoch, "is shut out", flush=True)
"""


@pytest.fixture
def stubborn(files: XdsFiles) -> Iterator["subprocess.Popen[str]"]:
    """A process that writes under each given epoch repeatedly until it is fenced."""
    command = [sys.executable, "-c", STUBBORN, str(files.home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_fenced_daemon_suspended_at_any_point_writes_nothing_after_it_resumes(
    files: XdsFiles, stubborn: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stubborn.stdin is not None
    assert stubborn.stdout is not None
    for epoch in range(1, 60, 2):
        old, new = Writer(epoch=epoch, process="old"), Writer(epoch=epoch + 1, process="new")
        stubborn.stdin.write(f"{epoch}\n")
        stubborn.stdin.flush()
        until_written(files, old)
        monkeypatch.setattr(xds_fence, "LOCKED_FOR_S", 0.2)
        time.sleep(epoch * 0.0002)  # a different point of the write each time
        stubborn.send_signal(signal.SIGSTOP)
        try:
            put(files, new)
        except ActError as error:
            held = error.why  # held by the suspended process
            stubborn.send_signal(signal.SIGCONT)
            monkeypatch.setattr(xds_fence, "LOCKED_FOR_S", DEADLINE_S)
            put(files, new)
        else:
            held = ""
        stubborn.send_signal(signal.SIGCONT)

        assert stubborn.stdout.readline() == f"{epoch} is shut out\n"
        assert files.path("rds").read_bytes() == content(new)
        assert held == "" or "is a daemon stopped?" in held


def until_written(files: XdsFiles, writer: Writer) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while all(version.epoch != writer.epoch for version in files.versions()):
        assert time.monotonic() < end_s
        time.sleep(0.001)


def test_fences_the_older_daemon_before_the_newer_one_writes(files: XdsFiles) -> None:
    put(files, OLD)
    with files.alone(NEW):
        pass

    with pytest.raises(FencedError, match="epoch 2, this daemon is 1"):
        put(files, OLD)

    assert files.newest() == NEW


@pytest.mark.parametrize("before", [content(OLD), None], ids=["an older file", "none"])
def test_a_reverted_file_does_not_admit_the_older_daemon(files: XdsFiles, before: bytes | None) -> None:
    put(files, OLD)
    put(files, NEW)
    asyncio.run(files.put("rds", before, writer=NEW))

    with pytest.raises(FencedError):
        put(files, OLD, 2)

    assert files.path("rds").exists() == (before is not None)


def test_a_lost_or_unreadable_file_does_not_admit_the_older_daemon(files: XdsFiles) -> None:
    put(files, NEW)
    files.path("rds").write_bytes(b"{")

    with pytest.raises(FencedError):
        put(files, OLD)


def test_only_the_first_of_two_daemons_of_one_epoch_may_write(files: XdsFiles) -> None:
    put(files, OLD)

    with pytest.raises(FencedError, match="another daemon of the same epoch 1"):
        put(files, Writer(epoch=1, process="b"))
    put(files, OLD, 2)

    assert files.path("rds").read_bytes() == content(OLD, 2)


@pytest.mark.parametrize("mark", [b"", b"\0" * 20, b"x 1\n", b"-1 a\n", b"\xff\xfe"], ids=repr)
def test_reads_the_epoch_from_the_files_when_the_mark_is_lost(files: XdsFiles, mark: bytes) -> None:
    put(files, NEW)
    (files.home / "lock").write_bytes(mark)

    with pytest.raises(FencedError):
        put(files, OLD)
    put(files, Writer(epoch=10, process="c"))

    assert files.newest() == Writer(epoch=10, process="c")


@given(st.binary(max_size=200))
def test_parses_any_mark_as_a_writer(mark: bytes) -> None:
    assert Writer.parse(mark).epoch >= 0


def test_a_writer_survives_a_round_trip(tmp_path: Path) -> None:
    fence = Fence(tmp_path / "lock")
    for writer in (OLD, NEW, Writer(epoch=10, process="c" * 32), Writer(epoch=11)):
        with fence.hold(writer):
            assert fence.newest() == writer


def test_reports_a_lock_held_by_a_suspended_daemon(files: XdsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xds_fence, "LOCKED_FOR_S", 0.05)

    with files.alone(OLD), pytest.raises(ActError, match="is a daemon stopped"):
        put(files, NEW)

    put(files, NEW)


def test_acquires_a_replaced_lock_again(files: XdsFiles) -> None:
    with files.alone(OLD):
        (files.home / "lock").unlink()
        with files.alone(NEW):
            assert files.newest() == NEW


def test_an_unwritable_folder_is_an_actuator_error(tmp_path: Path) -> None:
    (tmp_path / "envoy").write_text("a file where the folder should be")

    with pytest.raises(ActError, match="cannot write in"):
        put(XdsFiles(tmp_path / "envoy", "chat"), OLD)


def test_child_processes_do_not_inherit_the_lock(files: XdsFiles) -> None:
    with files.alone(OLD):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        put(files, NEW)
    finally:
        child.kill()
        child.wait()


def test_does_not_follow_a_symlink_at_the_lock_path(files: XdsFiles, tmp_path: Path) -> None:
    files.home.mkdir()
    (files.home / "lock").symlink_to(tmp_path / "victim")

    with pytest.raises(ActError):
        put(files, OLD)

    assert not (tmp_path / "victim").exists()
