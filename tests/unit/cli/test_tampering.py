"""`flettner audit verify` detects tampering with journal files and names the first bad entry.

The tampering relies only on the format in docs/audit.md: JSON lines, SHA-256 over RFC 8785.
"""

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from flettner.agent.audit import checkpoints
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.records import DAEMON, JournalEntry
from flettner.agent.audit.segments import RetentionLimits
from flettner.tools.cli.dispatch import main

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
COUNT = 330  # entries, and their checkpoints, in three files
Record = dict[str, Any]


@dataclass
class Files:
    """All lines of a journal in order, each with its file."""

    folder: Path
    lines: list[tuple[str, Record]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for path in [*sorted(self.folder.glob("audit-*.jsonl")), self.folder / "audit.jsonl"]:
            self.lines += [(path.name, json.loads(line)) for line in path.read_bytes().splitlines()]

    def write(self) -> None:
        for path in self.folder.glob("audit*.jsonl"):
            mine = [rfc8785.dumps(record) + b"\n" for name, record in self.lines if name == path.name]
            path.write_bytes(b"".join(mine))

    def at(self, seq: int) -> int:
        return next(i for i, (_, record) in enumerate(self.lines) if record["seq"] == seq)

    def rechain(self, start: int) -> None:
        """Rewrite the hash chain from `start` as documented."""
        for i in range(start, len(self.lines)):
            self.chain(i)

    def chain(self, i: int) -> None:
        record, before = self.lines[i][1], self.lines[i - 1][1]
        record["seq"], record["prev"] = before["seq"] + 1, before["hash"]
        bare = {name: value for name, value in record.items() if name != "hash"}
        record["hash"] = hashlib.sha256(rfc8785.dumps(bare)).hexdigest()

    def without_checkpoints(self, start: int) -> None:
        self.lines = [
            (name, record)
            for i, (name, record) in enumerate(self.lines)
            if i < start or record["action"] != "audit.checkpoint"
        ]


def edit(files: Files, seq: int) -> None:
    files.lines[files.at(seq)][1]["actor"]["id"] = "another user"


def edit_the_hash(files: Files, seq: int) -> None:
    files.lines[files.at(seq)][1]["hash"] = "0" * 64


def delete(files: Files, seq: int) -> None:
    del files.lines[files.at(seq)]


def insert(files: Files, seq: int) -> None:
    at = files.at(seq)
    forged = json.loads(json.dumps(files.lines[at][1]))
    files.lines.insert(at, (files.lines[at][0], forged | {"why": "forged"}))


def swap(files: Files, seq: int) -> None:
    at = files.at(seq)
    files.lines[at : at + 2] = reversed(files.lines[at : at + 2])


def repeat(files: Files, seq: int) -> None:
    files.lines.insert(files.at(seq), files.lines[files.at(seq)])


def drop_its_file(files: Files, seq: int) -> None:
    gone = files.lines[files.at(seq)][0]
    files.lines = [(name, record) for name, record in files.lines if name != gone]
    (files.folder / gone).unlink()


def cut_its_file_short(files: Files, seq: int) -> None:
    gone, at = files.lines[files.at(seq)][0], files.at(seq)
    files.lines = [line for i, line in enumerate(files.lines) if i < at or line[0] != gone]


def rechain(files: Files, seq: int) -> None:
    edit(files, seq)
    files.rechain(files.at(seq))


def rechain_without_checkpoints(files: Files, seq: int) -> None:
    edit(files, seq)
    files.without_checkpoints(files.at(seq))
    files.rechain(files.at(seq))


def cut_the_end(files: Files, seq: int) -> None:
    del files.lines[files.at(seq) :]


def rewrite_the_end(files: Files, seq: int) -> None:
    last = max(i for i, (_, record) in enumerate(files.lines[:-1]) if record["action"] == "audit.checkpoint")
    del files.lines[-1:]
    files.lines[last + 1][1]["why"] = f"rewritten entry after {seq}"
    files.rechain(last + 1)


Tamper = Callable[[Files, int], None]
FOUND: tuple[tuple[Tamper, int, int | None, int | None, int | None], ...] = (
    # tampering, entry; first bad entry without key or pin, with the key, with a pin of the head
    (edit, 1, 1, 1, 1),
    (edit, 50, 50, 50, 50),
    (edit, 200, 200, 200, 200),
    (edit, 330, 330, 330, 330),
    (edit_the_hash, 50, 50, 50, 50),
    (delete, 50, 50, 50, 50),
    (delete, 200, 200, 200, 200),
    (insert, 50, 50, 50, 50),
    (insert, 330, 330, 330, 330),
    (swap, 50, 50, 50, 50),
    (swap, 200, 200, 200, 200),
    (repeat, 50, 51, 51, 51),
    (drop_its_file, 50, 1, 1, 1),
    (drop_its_file, 200, 0, 0, 0),  # 0: the first entry of that file
    (cut_its_file_short, 50, 50, 50, 50),
    (cut_its_file_short, 200, 200, 200, 200),
    (rechain, 50, -1, -1, -1),  # -1: the first checkpoint that follows
    (rechain_without_checkpoints, 50, None, 1, -2),  # -2: the pinned entry, or the one after the last
    (cut_the_end, 330, None, None, -2),
    (rewrite_the_end, 1, None, None, -2),
)

IN_PLACE = {edit, delete, insert, swap}  # the first bad entry is where it was, or would be


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    signer = checkpoints.create_signer(tmp_path / "audit.key")
    (tmp_path / "audit.pub").write_text(signer.public_pem())
    path, limits = tmp_path / "audit.jsonl", RetentionLimits(segment_bytes=60_000)
    journal = Journal.open(path, now=lambda: NOON, sync=lambda _: None, limits=limits, signer=signer)
    while journal.head.seq < COUNT:
        why = f"number {journal.head.seq}"
        journal.append(JournalEntry(at=NOON, actor=DAEMON, action="rollout.advanced", target="chat", why=why))
    journal.close()
    assert len(list(tmp_path.glob("audit-*.jsonl"))) == 2
    return tmp_path


def verified(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    status = main(["audit", "verify", "--state-dir", str(folder), *options])
    return status, capsys.readouterr().out


@pytest.mark.parametrize(
    ("tamper", "seq", "bare", "key", "pin"), FOUND, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_detects_each_documented_tampering(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    tamper: Tamper,
    seq: int,
    bare: int | None,
    key: int | None,
    pin: int | None,
) -> None:
    files = Files(folder)
    head = dict(files.lines[-1][1])
    name = files.lines[files.at(seq)][0]
    opens = next(record["seq"] for place, record in files.lines if place == name)
    signs = next(r["seq"] for _, r in files.lines if r["seq"] > seq and r["action"] == "audit.checkpoint")
    pinned = f"{head['seq']}:{head['hash']}"
    log = folder / "daemon.log"
    log.write_text(
        json.dumps({"event": "audit.anchor", "audit_seq": head["seq"], "audit_head": head["hash"]})
    )
    assert verified(folder, capsys, "--key", str(folder / "audit.pub"), "--pin", pinned)[0] == 0

    tamper(files, seq)
    files.write()
    (folder / "audit.mark").unlink()  # as one who knows of it would

    last = files.lines[-1][1]["seq"]
    meant = {0: opens, -1: signs, -2: min(head["seq"], last + 1)}
    for options, expected in (
        ((), bare),
        (("--key", str(folder / "audit.pub")), key),
        (("--pin", pinned), pin),
        (("--anchor", str(log)), pin),
    ):
        status, out = verified(folder, capsys, *options)
        if expected is None:
            assert (status, out[:3]) == (0, "ok:"), options
        else:
            assert status == 1, options
            assert out.startswith(f"bad: entry {meant.get(expected, expected)} ("), (options, out)
            assert tamper not in IN_PLACE or f" ({name}, line " in out, (options, out)


def test_only_a_pin_detects_tampering_with_the_private_key(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = Files(folder)
    head, signer = files.lines[-1][1], checkpoints.load_signer(folder / "audit.key")
    pin = f"{head['seq']}:{head['hash']}"
    edit(files, 50)
    for i in range(files.at(50), len(files.lines)):
        record, before = files.lines[i][1], files.lines[i - 1][1]
        if record["action"] == "audit.checkpoint":
            record["after"] = signer.sign(before["seq"], before["hash"])
        files.chain(i)
    files.write()
    (folder / "audit.mark").unlink()

    assert verified(folder, capsys, "--key", str(folder / "audit.pub"))[0] == 0
    status, out = verified(folder, capsys, "--pin", pin)
    assert (status, out.split(" (")[0]) == (1, f"bad: entry {head['seq']}")


def test_anchors_are_read_from_stdin(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = Files(folder).lines[-1][1]
    anchor = f"flettner: audit anchor {head['seq']}:{head['hash']}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"other lines\n{anchor}"))

    status, out = verified(folder, capsys, "--anchor", "-")

    assert (status, out.splitlines()[-1]) == (0, f"confirmed up to entry {head['seq']} by pins or anchors")


def test_a_file_without_anchors_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty.log").write_text("nothing\n")

    status = main(["audit", "verify", "--state-dir", str(folder), "--anchor", str(folder / "empty.log")])

    assert status == 2
    assert "empty.log: holds no anchor" in capsys.readouterr().err
