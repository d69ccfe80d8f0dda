"""Of two daemons that write what Envoy reads, the older one never has the last word."""

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

from actuators.envoy import fence as xds_fence
from actuators.envoy.fence import Fence, Writer
from actuators.envoy.files import XdsFiles
from agent.domain.errors import ActError, FencedError

OLD, NEW = Writer(epoch=1, process="a"), Writer(epoch=2, process="b")
DEADLINE_S = 60.0


def content(writer: Writer, number: int = 1) -> bytes:
    return f'{{"version_info": "{writer.epoch}.{number}.1", "resources": []}}'.encode()


def put(files: XdsFiles, writer: Writer, number: int = 1) -> bytes | None:
    return asyncio.run(files.put("rds", content(writer, number), writer=writer))


@pytest.fixture
def files(tmp_path: Path) -> XdsFiles:
    return XdsFiles(tmp_path / "envoy")


def test_of_two_writers_at_once_the_older_never_overwrites_the_newer(
    files: XdsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xds_fence, "LOCKED_FOR_S", DEADLINE_S)
    both = threading.Barrier(2)

    def written(writer: Writer) -> list[bytes | None]:
        """What each write replaced, until it is shut out."""
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
    assert not [found for found in old if found and found.startswith(b'{"version_info": "2.')]
    assert files.path("rds").read_bytes() == content(NEW, 99)


STUBBORN = """
import asyncio, sys
from pathlib import Path
from actuators.envoy.fence import Writer
from actuators.envoy.files import XdsFiles
from agent.domain.errors import FencedError

files = XdsFiles(Path(sys.argv[1]))
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
    """Writes under each epoch that it is told, again and again, until it is shut out."""
    command = [sys.executable, "-c", STUBBORN, str(files.home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_daemon_that_is_stopped_anywhere_and_goes_on_writes_nothing(
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
        time.sleep(epoch * 0.0002)  # another place in its write each time
        stubborn.send_signal(signal.SIGSTOP)
        try:
            put(files, new)
        except ActError as error:
            held = error.why  # by who is stopped
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


def test_the_older_is_shut_out_before_the_newer_has_written_anything(files: XdsFiles) -> None:
    put(files, OLD)
    with files.alone(NEW):
        pass

    with pytest.raises(FencedError, match="epoch 2, this daemon is 1"):
        put(files, OLD)

    assert files.newest() == NEW


@pytest.mark.parametrize("before", [content(OLD), None], ids=["an older file", "none"])
def test_what_is_taken_back_lets_the_older_in_no_more(files: XdsFiles, before: bytes | None) -> None:
    put(files, OLD)
    put(files, NEW)
    asyncio.run(files.put("rds", before, writer=NEW))

    with pytest.raises(FencedError):
        put(files, OLD, 2)

    assert files.path("rds").exists() == (before is not None)


def test_a_file_that_was_lost_or_cannot_be_read_lets_the_older_in_no_more(files: XdsFiles) -> None:
    put(files, NEW)
    files.path("rds").write_bytes(b"{")

    with pytest.raises(FencedError):
        put(files, OLD)


def test_of_two_daemons_of_one_epoch_only_the_first_may_write(files: XdsFiles) -> None:
    put(files, OLD)

    with pytest.raises(FencedError, match="another daemon of the same epoch 1"):
        put(files, Writer(epoch=1, process="b"))
    put(files, OLD, 2)

    assert files.path("rds").read_bytes() == content(OLD, 2)


@pytest.mark.parametrize("mark", [b"", b"\0" * 20, b"x 1\n", b"-1 a\n", b"\xff\xfe"], ids=repr)
def test_where_the_mark_was_lost_in_a_power_cut_the_files_tell(files: XdsFiles, mark: bytes) -> None:
    put(files, NEW)
    (files.home / "lock").write_bytes(mark)

    with pytest.raises(FencedError):
        put(files, OLD)
    put(files, Writer(epoch=10, process="c"))

    assert files.newest() == Writer(epoch=10, process="c")


@given(st.binary(max_size=200))
def test_any_mark_is_a_writer(mark: bytes) -> None:
    assert Writer.parse(mark).epoch >= 0


def test_a_writer_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    fence = Fence(tmp_path / "lock")
    for writer in (OLD, NEW, Writer(epoch=10, process="c" * 32), Writer(epoch=11)):
        with fence.hold(writer):
            assert fence.newest() == writer


def test_a_lock_that_a_stopped_daemon_holds_is_named(
    files: XdsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xds_fence, "LOCKED_FOR_S", 0.05)

    with files.alone(OLD), pytest.raises(ActError, match="is a daemon stopped"):
        put(files, NEW)

    put(files, NEW)


def test_a_lock_that_was_replaced_is_taken_anew(files: XdsFiles) -> None:
    with files.alone(OLD):
        (files.home / "lock").unlink()
        with files.alone(NEW):
            assert files.newest() == NEW


def test_a_folder_that_cannot_be_written_is_an_error_of_the_actuator(tmp_path: Path) -> None:
    (tmp_path / "envoy").write_text("a file where the folder should be")

    with pytest.raises(ActError, match="cannot write in"):
        put(XdsFiles(tmp_path / "envoy"), OLD)


def test_the_lock_is_not_handed_on_to_what_is_started(files: XdsFiles) -> None:
    with files.alone(OLD):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        put(files, NEW)
    finally:
        child.kill()
        child.wait()


def test_a_link_in_the_place_of_the_lock_is_not_followed(files: XdsFiles, tmp_path: Path) -> None:
    files.home.mkdir()
    (files.home / "lock").symlink_to(tmp_path / "victim")

    with pytest.raises(ActError):
        put(files, OLD)

    assert not (tmp_path / "victim").exists()
