"""What systemd hears, over a real datagram socket."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.sdnotify import notify, reloading, watchdog_s


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = f"trimtab-test-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}" if request.param == "abstract" else name)
        listener.settimeout(30)
        yield listener, f"@{name}" if request.param == "abstract" else name


def test_systemd_hears_every_word(systemd: tuple[socket.socket, str]) -> None:
    listener, address = systemd
    environ = {"NOTIFY_SOCKET": address}

    notify("READY=1\nSTATUS=watching 2 targets", environ)
    notify("WATCHDOG=1", environ)
    reloading(environ)
    notify("STOPPING=1", environ)

    said = [listener.recv(4096).decode() for _ in range(4)]
    assert said[0] == "READY=1\nSTATUS=watching 2 targets"
    assert said[1] == "WATCHDOG=1"
    assert said[2].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert said[2].rpartition("=")[2].isdecimal()
    assert said[3] == "STOPPING=1"


@pytest.mark.parametrize("address", ["", "/nonexistent/notify", "x" * 500, "@nobody-listens"])
def test_without_a_listening_systemd_nothing_happens(address: str) -> None:
    notify("WATCHDOG=1", {"NOTIFY_SOCKET": address})
    notify("WATCHDOG=1", {})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WATCHDOG_USEC": "20000000"}, 20.0),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": str(os.getpid())}, 20.0),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_interval_is_read_for_this_process_only(
    environ: dict[str, str], expected: float | None
) -> None:
    assert watchdog_s(environ) == expected
