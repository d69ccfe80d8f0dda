"""Files that are replaced as a whole."""

from pathlib import Path

import pytest

from flettner.agent.io.files import replace_file


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


def test_a_failure_leaves_the_old_content(tmp_path: Path) -> None:
    file = tmp_path / "note.json"
    replace_file(file, b"old")
    file.with_suffix(".new").mkdir()

    with pytest.raises(IsADirectoryError):
        replace_file(file, b"new")

    assert file.read_bytes() == b"old"


def test_a_private_file_is_readable_by_its_user_only(tmp_path: Path) -> None:
    file = tmp_path / "note.json"

    replace_file(file, b"secret", mode=0o600)

    assert file.stat().st_mode & 0o777 == 0o600
