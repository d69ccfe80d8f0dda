"""Anchors: pushed on a schedule, and found again in any log."""

import asyncio
import io
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from flettner.agent.audit.anchors import AnchorOptions, anchor_text, find_anchors
from flettner.agent.audit.chain import Head, verify
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.mark import mark_path
from flettner.agent.audit.records import DAEMON, JournalEntry
from flettner.agent.audit.segments import RetentionLimits
from flettner.agent.config import loader
from flettner.agent.domain.errors import ConfigError, JournalError
from flettner.agent.notify.rules import Notice
from flettner.agent.runtime.anchor_schedule import AnchorSchedule, send_syslog
from flettner.agent.telemetry.journald import encode_log
from flettner.agent.telemetry.logging import configure
from flettner.notifiers.webhook import Webhook
from tests.support.daemon_log import daemon_log
from tests.support.fast_time import in_no_time

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
HEAD = Head(seq=812, hash="0123456789abcdef" * 4)
ENTRY = JournalEntry(at=NOON, actor=DAEMON, action="rollout.step", why="x" * 200)
CONFIG = """
[[targets]]
name = "chat"
[targets.engine]
kind = "process"
command = ["vllm", "serve", "m"]
"""


@pytest.fixture
def _log() -> Iterator[None]:
    with daemon_log():
        yield


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("_log")
@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["json", "terminal"])
def test_the_daemons_log_holds_anchors(stream: io.StringIO) -> None:
    configure("info", stream)

    AnchorSchedule(head=lambda: HEAD).push()

    assert "audit.anchor" in stream.getvalue()
    plain = stream.getvalue().replace("\x1b[36m", "").replace("\x1b[0m", "").replace("\x1b[35m", "")
    assert find_anchors(plain.splitlines()) == {HEAD}


def test_finds_anchors_in_each_kind_of_log(tmp_path: Path) -> None:
    line = {"event": "audit.anchor", "level": "info", **HEAD.log_fields()}
    secret = tmp_path / "secret"
    secret.write_text("s")
    webhook = Webhook(url="https://log.example.org", secret_file=str(secret))
    notice = Notice(id="audit.anchor/812", kind="audit.anchor", at=NOON, title=anchor_text(HEAD))
    body = webhook.post(notice, NOON)
    fields = {"FLETTNER_AUDIT_HEAD": HEAD.hash, "FLETTNER_AUDIT_SEQ": "812", "_PID": "1"}
    texts = (
        json.dumps(line),
        json.dumps(fields, separators=(",", ":")),  # journalctl -o json
        encode_log(line).decode().partition("\n")[0],  # journalctl
        f"Mar  4 12:00:00 host flettner: {anchor_text(HEAD)}",
        body.body.decode(),
        f"{HEAD.seq}:{HEAD.hash}",
    )

    for text in texts:
        assert find_anchors([text]) == {HEAD}, text
    assert find_anchors(["", "nothing", f"1{HEAD.hash}", f"7:{HEAD.hash}0", "audit_seq=8"]) == set()


def test_each_head_is_pushed_once_and_syslog_gets_it(tmp_path: Path) -> None:
    address = str(tmp_path / "log")
    heads = iter([HEAD, HEAD, Head(seq=813, hash=HEAD.hash), Head(seq=813, hash=HEAD.hash)])
    schedule = AnchorSchedule(
        head=lambda: next(heads),
        options=AnchorOptions(to=("syslog", "ops")),
        syslog=partial(send_syslog, address=address),
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        syslog.bind(address)
        syslog.setblocking(False)
        for _ in range(4):
            schedule.push()
        lines = [syslog.recv(4096).decode() for _ in range(2)]
        with pytest.raises(BlockingIOError):
            syslog.recv(4096)

    assert lines[0] == f"<29>flettner: audit anchor {HEAD.seq}:{HEAD.hash}"
    assert find_anchors(lines) == {HEAD, schedule.latest}
    assert (schedule.for_receiver("ops"), schedule.for_receiver("slack")) == (schedule.latest, None)


def test_a_missing_syslog_ends_nothing(tmp_path: Path) -> None:
    schedule = AnchorSchedule(
        head=lambda: HEAD,
        options=AnchorOptions(to=("syslog",)),
        syslog=partial(send_syslog, address=str(tmp_path / "none")),
    )

    schedule.push()

    assert schedule.latest == HEAD


def test_anchors_are_pushed_on_a_schedule() -> None:
    seqs = iter(range(1, 1000))
    pushed: list[str] = []
    schedule = AnchorSchedule(
        head=lambda: Head(seq=next(seqs), hash=HEAD.hash),
        options=AnchorOptions(every_s=600, to=("syslog",)),
        syslog=pushed.append,
    )

    async def scenario() -> None:
        task = asyncio.create_task(schedule.run())
        await asyncio.sleep(3601)
        task.cancel()

    in_no_time(scenario())

    assert len(pushed) == 7


# verification


def journal_of(path: Path, entries: int, limits: RetentionLimits | None = None) -> list[Head]:
    """Write a journal; every tenth head is an anchor."""
    journal = Journal.open(path, now=lambda: NOON, sync=lambda _: None, limits=limits)
    anchors = []
    for number in range(1, entries + 1):
        journal.append(ENTRY)
        anchors += [journal.head] if number % 10 == 0 else []
    journal.close()
    return anchors


def test_anchors_confirm_an_intact_journal(tmp_path: Path) -> None:
    anchors = journal_of(tmp_path / "audit.jsonl", 35)

    report = verify(tmp_path / "audit.jsonl", anchors=anchors)

    assert (report.ok, report.pinned) == (True, 30)


def test_anchors_detect_a_replaced_journal(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    anchors = journal_of(path, 35)
    path.unlink()
    mark_path(path).unlink()
    journal = Journal.open(path, now=lambda: NOON, sync=lambda _: None)
    for _ in range(50):
        journal.append(replace(ENTRY, why="forged"))
    journal.close()

    assert verify(path).ok
    report = verify(path, anchors=anchors)
    assert (report.ok, report.first_bad) == (False, 10)


def test_anchors_of_removed_entries_do_not_matter_if_a_later_one_holds(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    limits = RetentionLimits(segment_bytes=4000, keep_s=3600)
    journal = Journal.open(path, now=lambda: NOON, sync=lambda _: None, limits=limits)
    early = [Head(seq=r["seq"], hash=r["hash"]) for r in (journal.append(ENTRY) for _ in range(30))]
    later = JournalEntry(at=NOON.replace(day=20), actor=DAEMON, action="rollout.step", why="x" * 200)
    while path.with_name("audit-000000000001.jsonl").exists():
        journal.append(later)
    head = journal.head
    journal.close()

    assert verify(path, anchors=[*early, head]).ok
    with pytest.raises(JournalError, match="was removed by retention"):
        verify(path, anchors=early[:3])


# config


def test_the_config_sets_the_schedule_and_the_destinations() -> None:
    config = loader.parse_config(
        f"""
        [agent.audit.anchor]
        every = "1h"
        to = ["syslog", "ops"]
        [[notify]]
        kind = "slack"
        name = "ops"
        url_file = "slack.url"
        {CONFIG}
        """,
        here=Path("/etc/flettner"),
    )

    assert config.anchor == AnchorOptions(every_s=3600, to=("syslog", "ops"))
    assert loader.parse_config(CONFIG, here=Path("/etc/flettner")).anchor == AnchorOptions()


def test_an_unknown_destination_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        loader.parse_config(f'[agent.audit.anchor]\nto = ["sylog"]\n{CONFIG}', here=Path("/etc/flettner"))

    assert str(caught.value).startswith("[agent.audit.anchor] to: 'sylog' is neither")
    assert "syslog" in str(caught.value).rpartition("[[notify]]")[2]
