"""Notifications to systemd, over a real datagram socket."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from flettner.agent.telemetry.sdnotify import SystemdNotifier, find_notifier, read_watchdog_s


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = f"flettner-test-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}" if request.param == "abstract" else name)
        listener.settimeout(30)
        yield listener, f"@{name}" if request.param == "abstract" else name


def test_sends_every_notification_to_systemd(systemd: tuple[socket.socket, str]) -> None:
    listener, address = systemd
    daemon = find_notifier({"NOTIFY_SOCKET": address})

    daemon.ready("watching 2 targets")
    daemon.status("line one\nREADY=0")
    daemon.watchdog()
    daemon.reloading()
    daemon.stopping()

    datagrams = [listener.recv(4096).decode() for _ in range(5)]
    assert datagrams[0] == "READY=1\nSTATUS=watching 2 targets"
    assert datagrams[1] == "STATUS=line one READY=0"
    assert datagrams[2] == "WATCHDOG=1"
    assert datagrams[3].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert datagrams[3].rpartition("=")[2].isdecimal()
    assert datagrams[4] == "STOPPING=1"


def test_sends_nothing_without_systemd() -> None:
    daemon = find_notifier({})

    daemon.ready("fine")
    daemon.watchdog()

    assert daemon == SystemdNotifier("")


def test_ignores_a_missing_systemd_socket(tmp_path: Path) -> None:
    SystemdNotifier(str(tmp_path / "gone")).watchdog()
    SystemdNotifier("x" * 500).watchdog()


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
    assert read_watchdog_s(environ) == expected
