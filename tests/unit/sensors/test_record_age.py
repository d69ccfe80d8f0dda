"""Records of requests that ended before the daemon counted are left out, by the time that Envoy wrote."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flettner.sensors.proxy_requests.record_socket import Connection, RecordSocket

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


class Records:
    """An inbox that keeps the ages of what it gets, in seconds."""

    def __init__(self) -> None:
        self.active: set[Connection] = set()
        self.ages: list[int] = []

    def add(self, log: str, fields: Mapping[Any, Any]) -> None:
        del log
        self.ages.append(fields["age"])

    def count_unreadable(self, error: Exception) -> None:
        raise error


async def counted(folder: Path, ages: list[int], *, open_s: float, step_s: float = 0.0) -> list[int]:
    """The records that count, of those that arrive when the socket has been open for `open_s`.

    `step_s`: by which the clock was set meanwhile.
    """
    inbox, at = Records(), NOON + timedelta(seconds=open_s + step_s)
    socket = RecordSocket(folder / "records.sock", lambda: at)
    socket.inboxes["chat"] = inbox
    socket._began_s -= open_s
    entries = [[int(at.timestamp()) - age, {"age": age}] for age in ages]
    socket.add(["chat/us", entries, {}], Connection(socket))
    await socket.close()
    return inbox.ages


async def test_a_record_that_is_older_than_the_socket_by_more_than_a_second_is_left_out(
    tmp_path: Path,
) -> None:
    assert await counted(tmp_path, [0, 1, 3, 600], open_s=0.0) == [0, 1]


async def test_a_record_that_comes_late_counts(tmp_path: Path) -> None:
    assert await counted(tmp_path, [0, 30, 60, 63], open_s=60.0) == [0, 30, 60]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
async def test_a_step_of_the_clock_leaves_no_new_record_out(tmp_path: Path, step_s: float) -> None:
    assert await counted(tmp_path, [0, 30], open_s=60.0, step_s=step_s) == [0, 30]
