"""Files in mounted folders: only regular text files of limited size are read."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from flettner.actuators.docker.mounted_files import LARGEST_FILE, Mount, find_socket, mounted_files


def reading(folder: Path) -> Callable[[str], str | None]:
    mount = Mount(type="bind", name="", source=str(folder), destination="/models")
    return mounted_files([mount], "/models")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("s3cret")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "config.yaml").write_text("max-num-seqs: 8\n")
    (mounted / "link").symlink_to("config.yaml")
    (mounted / "out").symlink_to(tmp_path / "secret")
    (mounted / "endless").symlink_to("/dev/zero")
    (mounted / "large").write_bytes(b"x" * (LARGEST_FILE + 1))
    (mounted / "binary").write_bytes(b"\xff\xfe")
    (mounted / "folder").mkdir()
    os.mkfifo(mounted / "pipe")
    return mounted


@pytest.mark.parametrize("path", ["config.yaml", "/models/config.yaml", "link", "folder/../config.yaml"])
def test_a_plain_file_is_read(folder: Path, path: str) -> None:
    assert reading(folder)(path) == "max-num-seqs: 8\n"


@pytest.mark.parametrize(
    "path",
    ["out", "../secret", "endless", "large", "binary", "folder", "pipe", "nothing", "\0", "/etc/hostname"],
)
def test_reads_nothing_else(folder: Path, path: str) -> None:
    assert reading(folder)(path) is None


def test_a_socket_is_found_in_a_mounted_folder_without_links(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with TemporaryDirectory() as made:  # pytest's own is longer than the path of a socket may be
        folder, outside = Path(made).resolve(), tmp_path_factory.mktemp("outside")
        mounts = [Mount(type="bind", name="", source=str(folder), destination="/run/vllm")]
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "control.sock"))
            (folder / "link.sock").symlink_to("control.sock")
            (folder / "out").symlink_to(outside)
            (folder / "file.sock").write_text("")

            assert find_socket(mounts, Path("/run/vllm/control.sock")) == folder / "control.sock"
            for other in ("link.sock", "out/x.sock", "file.sock", "nothing.sock", "../control.sock"):
                assert find_socket(mounts, Path("/run/vllm") / other) is None
            assert find_socket(mounts, Path("/tmp/control.sock")) is None  # noqa: S108 - in no mount
