"""Files that are read up to a limit, written once, or replaced as a whole."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flettner.primitives.files import create_file, read_bounded, read_file, replace_file, replacing


def test_replaces_the_content_and_leaves_no_draft(tmp_path: Path) -> None:
    file = tmp_path / "note.json"
    replace_file(file, b"a long first content")

    replace_file(file, b"short")

    assert file.read_bytes() == b"short"
    assert list(tmp_path.iterdir()) == [file]


def test_a_reader_of_the_old_file_keeps_its_content(tmp_path: Path) -> None:
    file = tmp_path / "note.json"
    replace_file(file, b"old")

    with file.open("rb") as opened:
        replace_file(file, b"new")

        assert opened.read() == b"old"


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_that_cannot_be_replaced_stays_and_no_draft_is_left(tmp_path: Path, durable: bool) -> None:
    folder = tmp_path / "note.json"
    folder.mkdir()

    with pytest.raises(IsADirectoryError):
        replace_file(folder, b"new", durable=durable)

    assert list(tmp_path.iterdir()) == [folder]


def test_an_error_while_the_draft_is_written_leaves_the_old_content(tmp_path: Path) -> None:
    file = tmp_path / "note.json"
    replace_file(file, b"old")

    def fail() -> None:
        with replacing(file) as draft:
            draft.write(b"new")
            os.fchmod(-1, 0o644)

    with pytest.raises(OSError, match="Bad file descriptor"):
        fail()

    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("write", [replace_file, create_file])
def test_a_private_file_is_readable_by_its_user_only(tmp_path: Path, write: Callable[..., None]) -> None:
    file = tmp_path / "note.json"

    write(file, b"secret", mode=0o600)

    assert file.stat().st_mode & 0o777 == 0o600


def test_a_durable_replacement_is_on_disk_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, synced = tmp_path / "note.json", list[tuple[bool, bool]]()
    fsync = os.fsync

    def record(fd: int) -> None:
        synced.append((Path(f"/proc/self/fd/{fd}").is_dir(), file.exists()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    replace_file(file, b"not durable")
    file.unlink()
    replace_file(file, b"durable", durable=True)

    assert synced == [(False, False), (True, True)]


def test_a_new_file_never_replaces_another_one(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    create_file(file, b"first")

    with pytest.raises(FileExistsError):
        create_file(file, b"second")

    assert file.read_bytes() == b"first"


def test_a_file_of_the_largest_size_is_read_and_a_larger_one_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"x" * 64)

    assert read_file(file, 64) == b"x" * 64
    with pytest.raises(OSError, match="larger than 63 bytes"):
        read_file(file, 63)
    with pytest.raises(OSError, match="larger than 1 MiB"):
        read_bounded(io.BytesIO(bytes(2**20 + 1)), 2**20)
