"""A journal of many files: rotation, retention, and one chain over all files."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flettner.agent.audit import checkpoints
from flettner.agent.audit.chain import Head, verify
from flettner.agent.audit.checkpoints import Signer
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.mark import mark_path
from flettner.agent.audit.records import (
    DAEMON,
    GENESIS,
    JournalEntry,
    JournalRecord,
    encode_line,
    parse_record,
)
from flettner.agent.audit.segments import (
    RetentionLimits,
    closed_segments,
    draft_path,
    open_files,
    segment_path,
)
from flettner.agent.config.convert import limits
from flettner.agent.config.loader import parse_config
from flettner.agent.config.tables import AuditTable
from flettner.agent.domain.errors import ConfigError, JournalError
from flettner.agent.domain.state import Phase, State
from tests.support.sampling import sampled

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
LATER = NOON + timedelta(days=400)
ENTRY = JournalEntry(at=NOON, actor=DAEMON, action="rollout.step", target="chat", why="x" * 200)
SMALL = RetentionLimits(segment_bytes=4000)  # about ten entries
CHAT, BATCH = State(target="chat", phase=Phase.CANARY, epoch=7), State(target="batch", note="rests")


def opened(path: Path, limits: RetentionLimits = SMALL, signer: Signer | None = None) -> Journal:
    return Journal.open(path, now=lambda: NOON, sync=lambda _: None, limits=limits, signer=signer)


def written(path: Path, count: int, limits: RetentionLimits = SMALL, signer: Signer | None = None) -> Journal:
    journal = opened(path, limits, signer)
    journal.append(replace(ENTRY, state=CHAT, epoch=7))
    journal.append(replace(ENTRY, target="batch", state=BATCH))
    for number in range(3, count + 1):
        journal.append(replace(ENTRY, why=f"number {number} {'x' * 200}"))
    return journal


def every_file(path: Path) -> list[Path]:
    return [*(segment.path for segment in closed_segments(path)), path]


def every_record(path: Path) -> list[JournalRecord]:
    return [parse_record(line) for file in every_file(path) for line in file.read_bytes().splitlines()]


def is_full(journal: Journal) -> bool:
    return journal.full


def in_(path: Path) -> list[str]:
    return [file.name for file in path.parent.iterdir() if file != mark_path(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return checkpoints.create_signer(tmp_path / "audit.key")


# rotation


def test_a_full_file_is_closed_and_the_next_one_names_its_last_entry(path: Path) -> None:
    written(path, 40).close()

    files = every_file(path)
    lines = [file.read_bytes().splitlines() for file in files]
    firsts, lasts = [parse_record(part[0]) for part in lines], [parse_record(part[-1]) for part in lines]
    assert len(files) >= 3
    assert [file.name for file in files] == sorted(in_(path))
    for first, last, name in zip(firsts[1:], lasts, files, strict=False):
        assert first["action"] == "audit.segment_opened"
        assert (first["prev"], first["after"]["seq"], first["after"]["hash"]) == (
            last["hash"],
            last["seq"],
            last["hash"],
        )
        assert first["after"]["follows"] == name.name
    report = verify(path)
    assert (report.ok, report.entries) == (True, sum(len(part) for part in lines))


def test_a_restart_needs_no_other_file_than_the_last(path: Path) -> None:
    head = written(path, 40).head
    *older, _ = closed_segments(path)
    for segment in older:
        segment.path.unlink()

    again = opened(path)

    assert again.states() == {"chat": CHAT, "batch": BATCH}
    assert (again.epoch(), again.head) == (7, head)


@pytest.mark.parametrize("reopened", [False, True])
def test_a_page_of_entries_spans_files(path: Path, *, reopened: bool) -> None:
    journal = written(path, 200)
    if reopened:
        journal.close()
        journal = opened(path)
    seqs = list(range(1, journal.head.seq + 1))

    for after in range(0, journal.head.seq + 1, 7):
        page = journal.after(after, 30)
        assert [record["seq"] for record in page] == seqs[after : after + 30]


@pytest.mark.parametrize("limit_bytes", [1, 3000, 10**6])
def test_a_read_ends_at_the_entry_that_reaches_its_limit_of_bytes(path: Path, limit_bytes: int) -> None:
    journal = written(path, 100)
    sizes = [len(line) for file in every_file(path) for line in file.read_bytes().splitlines(keepends=True)]

    seq = 0
    while records := journal.after(seq, 1000, limit_bytes):
        assert [record["seq"] for record in records] == list(range(seq + 1, seq + len(records) + 1))
        read = sizes[seq : seq + len(records)]
        seq += len(records)
        assert sum(read[:-1]) < limit_bytes
        assert sum(read) >= limit_bytes or seq == journal.head.seq

    assert seq == journal.head.seq == len(sizes)


async def test_a_follower_gets_the_first_entries_of_a_new_file(path: Path) -> None:
    journal = written(path, 2)
    received: list[JournalRecord] = []
    records = journal.subscribe(0)

    while len(received) < 30:
        if len(received) == journal.head.seq:
            journal.append(ENTRY)
        received.append(await anext(records))

    assert [record["seq"] for record in received] == list(range(1, 31))
    assert "audit.segment_opened" in {record["action"] for record in received}


def test_a_day_old_file_is_closed_though_it_is_small(path: Path) -> None:
    journal = opened(path, RetentionLimits(segment_s=86400))
    for hours in (0, 12, 23, 25, 26):
        journal.append(replace(ENTRY, at=NOON + timedelta(hours=hours)))

    assert [segment.first for segment in closed_segments(path)] == [1]
    assert [record["action"] for record in every_record(path)][4:] == ["audit.segment_opened", "rollout.step"]


def test_states_larger_than_a_file_do_not_close_one_after_the_other(path: Path) -> None:
    journal = opened(path, RetentionLimits(segment_bytes=1000))
    journal.append(replace(ENTRY, state=State(target="chat", note="n" * 5000)))
    for _ in range(4):
        journal.append(ENTRY)

    assert len(closed_segments(path)) == 3  # two entries each


@pytest.mark.parametrize("crash", ["draft", "linked"])
def test_a_crash_while_a_file_is_closed_loses_nothing(path: Path, crash: str) -> None:
    journal = written(path, 5, RetentionLimits())
    head = journal.head
    journal.close()
    draft_path(path).write_bytes(path.read_bytes())
    if crash == "linked":
        os.link(path, path.with_name("audit-000000000001.jsonl"))

    report = verify(path)
    again = opened(path, RetentionLimits())

    assert (report.ok, report.entries) == (True, 5)
    assert again.head == head
    assert again.append(ENTRY)["seq"] == 6
    assert in_(path) == ["audit.jsonl"]
    assert verify(path).entries == 6


def test_a_failed_rotation_continues_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    journal = opened(path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", full)
        for _ in range(20):
            journal.append(ENTRY)
        assert closed_segments(path) == []
        assert not draft_path(path).exists()
    journal.append(ENTRY)

    assert len(closed_segments(path)) == 1
    assert verify(path).entries == journal.head.seq


def test_a_file_that_has_the_name_of_the_next_closed_one_is_left_alone(path: Path) -> None:
    journal = opened(path)
    path.with_name("audit-000000000001.jsonl").write_bytes(b"somebody's")
    for _ in range(20):
        journal.append(ENTRY)

    assert path.with_name("audit-000000000001.jsonl").read_bytes() == b"somebody's"
    assert journal.head.seq == 20
    assert not draft_path(path).exists()


WRITER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from flettner.agent.audit import checkpoints
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.records import DAEMON, JournalEntry
from flettner.agent.audit.segments import RetentionLimits
from flettner.agent.domain.state import State
noon, path = datetime(2026, 3, 4, tzinfo=UTC), Path(sys.argv[1])
limits, signer = RetentionLimits(segment_bytes=1500), checkpoints.find_signer(path.parent)
journal = Journal.open(path, now=lambda: noon, limits=limits, signer=signer)
while True:
    entry = JournalEntry(at=noon, actor=DAEMON, action="daemon.ticked", state=State(target="chat"))
    record = journal.append(entry)
    print(record["seq"], flush=True)
"""


@pytest.mark.parametrize("after", sampled([1, 2, 3, 5, 8, 13], 3))
def test_acknowledged_entries_survive_a_kill_during_rotations(path: Path, signer: Signer, after: int) -> None:
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for count, _ in enumerate(process.stdout, start=1):
            if count == after:
                break
        process.kill()
        acknowledged = max([0, *(int(line) for line in process.stdout if line.endswith("\n"))])
        process.stdout.close()
        process.wait()
        report = verify(path, keys=signer.public_keys)
        assert report.ok, report
        assert report.head.seq >= acknowledged

    journal = opened(path, RetentionLimits(), signer)
    assert journal.states().keys() == {"chat"}
    journal.close()


def test_a_reader_misses_nothing_during_a_rotation(path: Path) -> None:
    journal = written(path, 40)
    before, first = journal.head.seq, len(closed_segments(path))
    files = open_files(path)
    lines = next(files)[1].readlines()
    while len(closed_segments(path)) == first:
        journal.append(ENTRY)

    lines += [line for _, file, _ in files for line in file]

    seqs = [parse_record(line)["seq"] for line in lines]
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) >= before


# a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 192 KiB; creating it requires root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", disk], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_loses_no_acknowledged_entry(small_disk: Path) -> None:
    path, ballast = small_disk / "audit.jsonl", small_disk / "ballast"
    ballast.write_bytes(b"b" * 50_000)
    journal = Journal.open(path, now=lambda: NOON, limits=RetentionLimits(segment_bytes=20_000))
    written, refused = [], 0
    while refused < 5:
        try:
            written.append(journal.append(ENTRY)["seq"])
        except JournalError:
            refused += 1
    assert verify(path).ok
    ballast.unlink()
    written.append(journal.append(ENTRY)["seq"])
    journal.close()

    report = verify(path)
    numbers = {record["seq"] for record in every_record(path)}
    assert report.ok
    assert set(written) <= numbers
    assert sorted(numbers) == list(range(1, report.head.seq + 1))


def test_a_torn_line_is_moved_once_the_disk_has_space(small_disk: Path) -> None:
    path, ballast = small_disk / "audit.jsonl", small_disk / "ballast"
    opened(path, RetentionLimits()).append(ENTRY)
    opened(path, RetentionLimits()).append(replace(ENTRY, why="w" * 60_000))
    mark_path(path).unlink()  # a crash leaves the mark of an earlier entry
    torn = path.read_bytes()[:-30]
    path.write_bytes(torn)
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(b"b" * 1000):
            pass

    journal = opened(path, RetentionLimits())
    with pytest.raises(JournalError, match="cannot be moved"):
        journal.append(ENTRY)
    assert path.read_bytes() == torn
    assert journal.head.seq == 1
    ballast.unlink()
    journal.append(ENTRY)

    assert [record["action"] for record in every_record(path)][1:] == ["audit.truncated_tail", "rollout.step"]
    assert verify(path).ok


# retention


def test_old_files_are_removed_and_recorded(path: Path) -> None:
    journal = opened(path, RetentionLimits(segment_s=86400, keep_s=3 * 86400))
    for day in range(8):
        journal.append(replace(ENTRY, at=NOON + timedelta(days=day, minutes=1)))
        journal.append(replace(ENTRY, at=NOON + timedelta(days=day, hours=1)))
    report = verify(path)

    records = every_record(path)
    removed = [record for record in records if record["action"] == "audit.removed"]
    assert report.ok
    assert report.first == records[0]["seq"] > 1
    assert removed[-1]["after"]["cuts"][-1]["last"] == report.first - 1
    assert datetime.fromisoformat(records[0]["ts"]) >= NOON + timedelta(days=3)
    assert journal.after(0, 1)[0]["seq"] == report.first
    journal.close()
    assert Journal.open(path, now=lambda: NOON + timedelta(days=8)).head == report.head


def test_no_size_removes_an_entry_younger_than_the_retention_time(path: Path) -> None:
    journal = written(path, 200, replace(SMALL, keep_bytes=12_000))

    assert journal.size == sum(file.stat().st_size for file in every_file(path)) > 3 * 12_000
    assert every_record(path)[0]["seq"] == 1
    assert verify(path).ok


def test_a_full_journal_is_recorded_once_and_its_room_again(path: Path) -> None:
    limits = RetentionLimits(segment_bytes=4000, keep_bytes=14_000, keep_s=86400)
    journal = opened(path, limits)
    while not is_full(journal):
        journal.append(ENTRY)
    actions: dict[int, str] = {}
    for hour in range(0, 100, 13):
        assert is_full(journal) or hour > 24
        journal.append(replace(ENTRY, at=NOON + timedelta(hours=hour)))
        actions |= {record["seq"]: record["action"] for record in every_record(path)}

    assert not is_full(journal)
    assert [action for action in actions.values() if "full" in action or "room" in action] == [
        "audit.full",
        "audit.has_room",
    ]
    assert verify(path).ok


def test_a_restart_finds_a_journal_full(path: Path) -> None:
    written(path, 200).close()
    journal = opened(path, replace(SMALL, keep_bytes=12_000))

    assert journal.full
    journal.append(ENTRY)
    assert every_record(path)[-1]["action"] == "audit.full"


def test_a_clock_that_jumps_by_years_removes_few_files(path: Path) -> None:
    journal = written(path, 120)
    before = len(closed_segments(path))
    journal.append(replace(ENTRY, at=NOON + timedelta(days=4000)))
    journal.append(replace(ENTRY, at=NOON + timedelta(days=4000, seconds=1)))

    assert before >= 6
    assert len(closed_segments(path)) == before + 1 - 2
    assert verify(path).ok


def test_a_crash_between_removals_is_no_tampering(path: Path) -> None:
    written(path, 60).close()
    contents = {file.name: file.read_bytes() for file in every_file(path)}
    journal = opened(path)
    while path.with_name("audit-000000000001.jsonl").exists():
        journal.append(replace(ENTRY, at=LATER))
    journal.close()
    (removed,) = [record for record in every_record(path) if record["action"] == "audit.removed"]
    *_, before, newest = [cut["file"] for cut in removed["after"]["cuts"]]

    path.with_name(newest).write_bytes(contents[newest])
    assert verify(path).ok
    path.with_name(newest).unlink()
    path.with_name(before).write_bytes(contents[before])
    assert not verify(path).ok


@pytest.mark.parametrize("left", [1, 2])
def test_files_removed_by_another_program_are_reported_missing(path: Path, left: int) -> None:
    written(path, 60).close()
    gone = closed_segments(path)[:-left] if left < len(closed_segments(path)) else closed_segments(path)
    for segment in gone:
        segment.path.unlink()

    report = verify(path)

    assert (report.ok, report.first_bad, report.entries) == (False, 1, 0)
    assert "entries before it are missing" in report.problem


def test_a_start_without_the_files_before_it_is_refused_unless_an_entry_removed_them(path: Path) -> None:
    written(path, 40).close()
    for segment in closed_segments(path):
        segment.path.unlink()

    with pytest.raises(JournalError, match=r"entry 1 \(line 1\) is bad: entries before it are missing"):
        opened(path)


@pytest.mark.parametrize("line", [0, -1], ids=["first", "last"])
def test_a_start_checks_both_ends_of_each_closed_file(path: Path, line: int) -> None:
    written(path, 60).close()
    middle = closed_segments(path)[1].path
    lines = middle.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"why":"', b'"why":"!', 1)
    middle.write_bytes(b"".join(lines))

    with pytest.raises(JournalError, match=rf"{middle.name}.*its content does not match its hash"):
        opened(path)


def test_a_start_finds_a_missing_or_renamed_file(path: Path) -> None:
    written(path, 60).close()
    _, second, third, *_ = closed_segments(path)
    aside = second.path.rename(path.with_name("aside"))

    with pytest.raises(JournalError, match=f"in {third.path.name}: .*entries before it are missing"):
        opened(path)
    aside.rename(segment_path(path, second.first + 1))
    with pytest.raises(JournalError, match=f"which should begin with {second.first + 1}"):
        opened(path)


def test_a_start_rejects_a_closed_file_with_a_forged_signature(path: Path, signer: Signer) -> None:
    written(path, 60, SMALL, signer).close()
    files = {file: file.read_bytes().splitlines(keepends=True) for file in every_file(path)}
    middle = closed_segments(path)[1].path
    flat = [line for lines in files.values() for line in lines]
    at = flat.index(files[middle][1])
    rewritten = iter(rechain(flat, at))
    for file, lines in files.items():
        file.write_bytes(b"".join(next(rewritten) for _ in lines))

    assert verify(path, keys=signer.public_keys).first_bad is not None
    with pytest.raises(JournalError, match="bad"):
        opened(path, SMALL, signer)


def test_a_missing_open_file_is_not_created_again(path: Path) -> None:
    written(path, 40).close()
    path.unlink()

    with pytest.raises(JournalError, match="the end was removed"):
        opened(path)
    path.write_bytes(b"")
    with pytest.raises(JournalError, match="the file is empty"):
        opened(path)
    assert verify(path).problem == "the file is empty"


# tampering


def rechain(lines: list[bytes], at: int) -> list[bytes]:
    """Edit an entry and rechain all later entries, like an attacker with this code."""
    chained = lines[:at]
    for line in lines[at:]:
        record = parse_record(line)
        before = parse_record(chained[-1]) if chained else None
        entry = replace(
            ENTRY,
            action=record["action"],
            why="it was somebody else" if len(chained) == at else record["why"],
            after=record["after"],
        )
        seq, prev = (before["seq"] + 1, before["hash"]) if before else (1, GENESIS)
        chained.append(encode_line(entry, seq=seq, prev=prev, boot_id="", host=""))
    return chained


def test_a_file_missing_in_the_middle_is_named_by_its_first_entry(path: Path) -> None:
    written(path, 60).close()
    gone = closed_segments(path)[1]
    gone.path.unlink()

    report = verify(path)

    assert (report.ok, report.first_bad) == (False, gone.first)


def test_a_closed_file_cannot_end_in_a_torn_line(path: Path) -> None:
    written(path, 40).close()
    first = closed_segments(path)[0].path
    first.write_bytes(first.read_bytes()[:-30])

    assert not verify(path).ok


# a changed, not torn, last line


@pytest.mark.parametrize(
    "end",
    [
        lambda line: line[:-1] + b"\x0b",  # the newline itself flipped
        lambda line: line[:-40] + b"\x00" + line[-39:],  # one byte became zero
        lambda line: line[:-1].replace(b"xxx", b"xyx"),  # edited, its newline removed
        lambda line: line[:90].replace(b'"', b"'"),
        lambda _: b"#",
        lambda _: b"\xff\xfe",
    ],
)
def test_an_end_that_no_crash_leaves_is_tampering(path: Path, end: Callable[[bytes], bytes]) -> None:
    written(path, 5, RetentionLimits()).close()
    *lines, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, end(last)]))

    report = verify(path)

    assert (report.ok, report.first_bad, report.torn_tail) == (False, 5, 0)
    with pytest.raises(JournalError, match="entry 5"):
        opened(path)


# checkpoints


def test_signs_at_the_interval_and_at_each_stop(path: Path, signer: Signer) -> None:
    journal = written(path, 250, RetentionLimits(), signer)
    journal.close()

    signed = [record for record in every_record(path) if record["action"] == "audit.checkpoint"]
    report = verify(path, keys=signer.public_keys)
    assert [record["seq"] for record in signed] == [101, 202, 253]
    assert (report.ok, report.checkpoints, report.signed) == (True, 3, 253)
    assert verify(path).signed == 0


def test_each_file_ends_and_begins_signed(path: Path, signer: Signer) -> None:
    written(path, 60, SMALL, signer).close()

    for segment in closed_segments(path):
        assert parse_record(segment.path.read_bytes().splitlines()[-1])["action"] == "audit.checkpoint"
    assert verify(path, keys=signer.public_keys).ok


def test_a_stop_right_after_a_start_signs_nothing_twice(path: Path, signer: Signer) -> None:
    written(path, 5, RetentionLimits(), signer).close()
    opened(path, RetentionLimits(), signer).close()

    assert len(every_record(path)) == 6


def test_a_rechained_edit_lacks_the_signature(path: Path, signer: Signer) -> None:
    written(path, 250, RetentionLimits(), signer).close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(rechain(lines, 120)))

    assert verify(path).first_bad == 202  # its checkpoint names the hash of a removed entry
    report = verify(path, keys=signer.public_keys)
    assert (report.ok, report.first_bad, report.signed) == (False, 202, 101)
    with pytest.raises(JournalError, match="entry 202"):
        opened(path, RetentionLimits(), signer)


@pytest.mark.parametrize("at", [120, 0])
def test_removed_checkpoints_are_found(path: Path, signer: Signer, at: int) -> None:
    written(path, 450, RetentionLimits(), signer).close()
    lines = path.read_bytes().splitlines(keepends=True)
    remaining = [line for n, line in enumerate(lines) if n < at or b'"audit.checkpoint"' not in line]
    path.write_bytes(b"".join(rechain(remaining, at)))

    assert verify(path).ok  # the documented limit: a rechained journal, verified without the key
    report = verify(path, keys=signer.public_keys)
    assert not report.ok
    assert "were removed" in report.problem


def test_rejects_a_signature_of_another_key(path: Path, signer: Signer, tmp_path: Path) -> None:
    written(path, 5, RetentionLimits(), checkpoints.create_signer(tmp_path / "other.key")).close()

    report = verify(path, keys=signer.public_keys)

    assert (report.ok, report.first_bad) == (False, 6)
    assert "with a key that was not given" in report.problem


def test_a_new_key_continues_after_the_old_one(path: Path, signer: Signer, tmp_path: Path) -> None:
    other = checkpoints.create_signer(tmp_path / "other.key")
    written(path, 5, RetentionLimits(), signer).close()
    journal = opened(path, RetentionLimits(), other)
    journal.append(ENTRY)
    journal.close()

    assert verify(path, keys={**signer.public_keys, **other.public_keys}).signed == 8


def test_a_journal_older_than_its_key_is_signed_from_the_start(path: Path, signer: Signer) -> None:
    written(path, 300, RetentionLimits()).close()
    journal = opened(path, RetentionLimits(), signer)
    journal.append(ENTRY)
    journal.close()

    assert verify(path, keys=signer.public_keys).ok


def test_only_the_owner_may_read_the_private_key(tmp_path: Path, signer: Signer) -> None:
    key = tmp_path / "audit.key"

    assert key.stat().st_mode & 0o777 == 0o600
    loaded = checkpoints.find_signer(tmp_path)
    assert loaded is not None
    assert loaded.id == signer.id
    key.chmod(0o640)
    with pytest.raises(JournalError, match="other users can read it"):
        checkpoints.find_signer(tmp_path)
    with pytest.raises(JournalError, match="cannot be written"):
        checkpoints.create_signer(key)


def test_loads_the_key_from_systemd_credentials(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    empty = tmp_path / "state"
    empty.mkdir()

    loaded = checkpoints.find_signer(empty)

    assert loaded is not None
    assert loaded.id == signer.id
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    assert checkpoints.find_signer(empty) is None


def test_reports_an_invalid_key(tmp_path: Path) -> None:
    (tmp_path / "audit.key").write_text("not a key")
    (tmp_path / "audit.key").chmod(0o600)

    with pytest.raises(JournalError, match="is not a readable key"):
        checkpoints.find_signer(tmp_path)
    with pytest.raises(JournalError, match="must hold Ed25519 public keys"):
        checkpoints.load_public_keys(tmp_path / "audit.key")


def test_reports_a_pin_older_than_the_first_entry(path: Path) -> None:
    journal = written(path, 60)
    while path.with_name("audit-000000000001.jsonl").exists():
        journal.append(replace(ENTRY, at=LATER))
    journal.close()

    with pytest.raises(JournalError, match="give a later pin"):
        verify(path, pins=[Head(seq=2, hash="0" * 64)])


# config


def test_the_config_sets_rotation_and_retention() -> None:
    table = AuditTable.model_validate({"segment_mb": 1, "segment_age": "1h", "keep_mb": 10, "keep": "30d"})

    assert limits(AuditTable()) == RetentionLimits()
    assert limits(table) == RetentionLimits(
        segment_bytes=2**20, segment_s=3600, keep_bytes=10 * 2**20, keep_s=30 * 86400
    )


def test_an_invalid_limit_is_named_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[agent\] audit\.keep_mb: "):
        parse_config("[agent.audit]\nkeep_mb = 0\n", here=tmp_path)
