"""A journal that does not continue the one before: found at a start and by `verify`, accepted on request."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flettner.agent.audit import checkpoints
from flettner.agent.audit.chain import verify
from flettner.agent.audit.continuity import verify_in_place
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.mark import mark_path, read_mark
from flettner.agent.audit.records import DAEMON, JournalEntry, encode_line, parse_record
from flettner.agent.audit.segments import RetentionLimits, closed_segments
from flettner.agent.domain.errors import JournalError
from flettner.agent.domain.state import State

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
ENTRY = JournalEntry(at=NOON, actor=DAEMON, action="rollout.step", target="chat", why="x" * 200)
ACCEPTED = "audit.accepted"


def opened(path: Path, *, accept: bool = False, epoch: int = 0) -> Journal:
    """As the daemon opens it."""
    return Journal.open(
        path,
        now=lambda: NOON,
        sync=lambda _: None,
        limits=RetentionLimits(segment_bytes=1_000_000),
        signer=checkpoints.find_signer(path.parent),
        accept=accept,
        epoch=epoch,
    )


def write(path: Path, count: int) -> None:
    journal = opened(path)
    for number in range(count):
        journal.append(replace(ENTRY, why=f"number {number} {'x' * 150}", state=State(target="chat")))
    journal.close()


def refusal(path: Path, epoch: int = 0) -> str:
    """Why a start is refused; empty if it is not."""
    try:
        opened(path, epoch=epoch).close()
    except JournalError as error:
        return str(error)
    return ""


def append_unsigned(path: Path, count: int, at: datetime = NOON) -> None:
    """Append valid entries as one without the key would."""
    last = parse_record(path.read_bytes().splitlines()[-1])
    seq, prev = last["seq"], last["hash"]
    with path.open("ab") as file:
        for _ in range(count):
            line = encode_line(replace(ENTRY, at=at), seq=seq + 1, prev=prev, boot_id="", host="")
            seq, prev = seq + 1, parse_record(line[:-1])["hash"]
            file.write(line)


def remove(path: Path) -> None:
    for file in (*(segment.path for segment in closed_segments(path)), path):
        file.unlink()


def remove_with_its_mark(path: Path) -> None:
    remove(path)
    mark_path(path).unlink()


def restart_journal(path: Path) -> None:
    """Replace the journal by one that is longer, and intact by itself."""
    remove(path)
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()
    write(elsewhere / path.name, 160)
    path.write_bytes((elsewhere / path.name).read_bytes())


def empty(path: Path) -> None:
    for segment in closed_segments(path):
        segment.path.unlink()
    path.write_bytes(b"")


def empty_without_its_mark(path: Path) -> None:
    empty(path)
    mark_path(path).unlink()


def keep_the_beginning_of_a_line(path: Path) -> None:
    line = path.read_bytes()[:80]
    empty(path)
    path.write_bytes(line)


def cut_the_end(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-3]))


def rewrite_the_end(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    append_unsigned(path, 1)


def lose_the_key(path: Path) -> None:
    (path.parent / "audit.key").unlink()


def leave_the_end_unsigned(path: Path) -> None:
    append_unsigned(path, checkpoints.MAX_UNSIGNED + 1)


def date_the_end_in_the_future(path: Path) -> None:
    append_unsigned(path, 1, at=NOON + timedelta(days=400))


FOUND: tuple[tuple[Callable[[Path], None], str], ...] = (
    (remove, "the journal was removed, emptied or cut off"),
    (remove_with_its_mark, "audit.key has signed entries, and there are none"),
    (restart_journal, "the end was rewritten, or the journal was restarted"),
    (empty, "the journal was removed, emptied or cut off"),
    (empty_without_its_mark, "audit.key has signed entries, and there are none"),
    (keep_the_beginning_of_a_line, "the journal was removed, emptied or cut off"),
    (cut_the_end, "the journal was removed, emptied or cut off"),
    (rewrite_the_end, "the end was rewritten"),
    (lose_the_key, "which is missing"),
    (leave_the_end_unsigned, "the end is not signed"),
    (date_the_end_in_the_future, "it is dated 2027-04-08"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal in one file, with a key, after a clean stop."""
    checkpoints.create_signer(tmp_path / "audit.key")
    write(tmp_path / "audit.jsonl", 130)
    return tmp_path / "audit.jsonl"


@pytest.mark.parametrize(("change", "problem"), FOUND, ids=lambda value: getattr(value, "__name__", ""))
def test_a_start_and_a_verification_find_it(path: Path, change: Callable[[Path], None], problem: str) -> None:
    assert verify_in_place(path, now=NOON).ok
    change(path)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}

    report = verify_in_place(path, now=NOON)
    why = refusal(path)

    assert not report.ok
    assert problem in why
    assert "--accept-new-journal" in why
    assert {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()} == before


@pytest.mark.parametrize("change", [change for change, _ in FOUND], ids=lambda change: change.__name__)
def test_an_accepted_journal_goes_on_and_records_it(path: Path, change: Callable[[Path], None]) -> None:
    change(path)

    journal = opened(path, accept=True)
    journal.append(ENTRY)
    journal.close()

    records = [parse_record(line) for line in path.read_bytes().splitlines()]
    accepted = [record for record in records if record["action"] == ACCEPTED]
    assert len(accepted) == 1
    assert accepted[0]["why"].startswith("accepted with --accept-new-journal: entry ")
    assert refusal(path) == ""
    assert verify(path).ok


def test_an_acceptance_without_a_reason_records_nothing(path: Path) -> None:
    opened(path, accept=True).close()

    assert ACCEPTED not in path.read_text()


def test_a_journal_without_its_mark_but_with_a_running_proxy_was_removed(tmp_path: Path) -> None:
    assert "epoch 7 has acted here" in refusal(tmp_path / "audit.jsonl", epoch=7)
    assert not (tmp_path / "audit.jsonl").exists()


def test_an_unreadable_mark_is_named(path: Path) -> None:
    mark_path(path).write_text("{}")

    assert "audit.mark: is not the mark of a journal" in refusal(path)
    opened(path, accept=True).close()
    assert refusal(path) == ""


def test_what_is_no_plain_file_ends_a_start_and_a_verification_at_once(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)

    assert "not a plain file" in refusal(path)
    with pytest.raises(JournalError, match="not a plain file"):
        verify_in_place(path, now=NOON)


@pytest.mark.parametrize(
    ("plain", "other"),
    [
        (b'"rollout.step"', b'"rollout\\u002estep"'),
        (b'"after":{}', b'"after":{},"after":{}'),
        (b'"epoch":0', b'"epoch":0.0'),
        (b'"epoch":0', b'"epoch":-0'),
    ],
    ids=["escaped", "twice", "a float", "minus zero"],
)
def test_an_entry_that_says_the_same_in_other_bytes_is_refused_by_both(
    path: Path, plain: bytes, other: bytes
) -> None:
    """Readers that parse such a line differently would be shown different journals with one hash."""
    append_unsigned(path, 1)
    content = path.read_bytes()
    at = content.rindex(plain)
    path.write_bytes(content[:at] + other + content[at + len(plain) :])

    assert refusal(path)
    assert not verify_in_place(path, now=NOON).ok


def test_an_empty_closed_file_is_refused_by_both(path: Path) -> None:
    path.with_name("audit-000000000001.jsonl").touch()

    assert "audit-000000000001.jsonl" in refusal(path)
    report = verify_in_place(path, now=NOON)
    assert (report.ok, report.problem) == (False, "the file is empty")


# what needs no acceptance


@pytest.mark.parametrize("key", [True, False])
def test_a_first_start_needs_no_acceptance(tmp_path: Path, *, key: bool) -> None:
    if key:
        checkpoints.create_signer(tmp_path / "audit.key")
    path = tmp_path / "audit.jsonl"

    for _ in range(3):
        assert refusal(path) == ""
    write(path, 3)
    assert refusal(path) == ""
    assert verify_in_place(path, now=NOON).ok


@pytest.mark.parametrize("left", [0, 1, 60, -2, -1])
@pytest.mark.parametrize("key", [True, False])
def test_a_crash_in_the_first_write_needs_no_acceptance(tmp_path: Path, left: int, *, key: bool) -> None:
    """The mark is written after the entry is on disk, so that a crash before leaves none."""
    if key:
        checkpoints.create_signer(tmp_path / "audit.key")
    path = tmp_path / "audit.jsonl"
    line = encode_line(ENTRY, seq=1, prev="0" * 64, boot_id="", host="")
    path.write_bytes(line[:left])

    assert verify_in_place(path, now=NOON).ok
    assert refusal(path) == ""
    write(path, 3)
    assert verify_in_place(path, now=NOON).ok


@pytest.mark.parametrize("entries", [1, 99, 150])
def test_a_crash_at_any_entry_needs_no_acceptance(tmp_path: Path, entries: int) -> None:
    checkpoints.create_signer(tmp_path / "audit.key")
    path = tmp_path / "audit.jsonl"
    journal = opened(path)
    for _ in range(entries):
        journal.append(ENTRY)
        mark = read_mark(path)
        assert journal.head.seq - checkpoints.INTERVAL - 2 < mark.head.seq <= journal.head.seq

    assert refusal(path) == ""  # without `close`, as after a kill


def test_rotation_and_removal_need_no_acceptance(tmp_path: Path) -> None:
    checkpoints.create_signer(tmp_path / "audit.key")
    path, at = tmp_path / "audit.jsonl", NOON
    limits = RetentionLimits(segment_bytes=4000, keep_s=3 * 86400)
    for _ in range(12):
        at += timedelta(days=1)
        journal = Journal.open(
            path,
            now=lambda: at,  # noqa: B023 - used within this turn
            limits=limits,
            signer=checkpoints.find_signer(tmp_path),
        )
        for _ in range(40):
            journal.append(replace(ENTRY, at=at))
        journal.close()

    assert not path.with_name("audit-000000000001.jsonl").exists()
    assert verify_in_place(path, now=at).ok


def test_a_journal_of_an_earlier_version_has_no_mark(path: Path) -> None:
    mark_path(path).unlink()
    (path.parent / "audit.key").chmod(0o600)

    assert refusal(path) == ""
    write(path, 1)
    assert read_mark(path).key == "audit.key"


def test_another_key_continues(path: Path) -> None:
    (path.parent / "audit.key").unlink()
    checkpoints.create_signer(path.parent / "audit.key")

    assert refusal(path) == ""


def test_a_clock_that_was_set_back_by_minutes_needs_no_acceptance(path: Path) -> None:
    append_unsigned(path, 1, at=NOON + timedelta(minutes=50))

    assert refusal(path) == ""


def test_a_key_that_has_signed_is_read_only(path: Path) -> None:
    assert (path.parent / "audit.key").stat().st_mode & 0o777 == 0o400
    assert read_mark(path).key == "audit.key"
