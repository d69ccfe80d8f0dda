"""The mark: the head that the journal had reached, in a file of its own next to it.

It is written after the entry that it names is on disk, so that no crash leaves a journal shorter than it. It
reveals a journal that was removed, emptied, cut or restarted by something that did not change the mark, too.
Other changes are revealed by anchors only (flettner.agent.audit.anchors).
"""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from flettner.agent.audit.chain import Head
from flettner.agent.audit.checkpoints import KEY_FILE
from flettner.agent.domain.errors import JournalError
from flettner.primitives.files import replace_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    head: Head = field(default_factory=Head)
    key: str = ""  # file name of the key in the same directory; empty: none was there


def mark_path(journal: Path) -> Path:
    return journal.with_suffix(".mark")


def read_mark(journal: Path) -> Mark:
    """Read the mark; an empty one if there is none. Raises JournalError."""
    path = mark_path(journal)
    try:
        mark = json.loads(path.read_text(encoding="utf-8"))
        return Mark(head=Head(seq=int(mark["seq"]), hash=str(mark["hash"])), key=str(mark["key"]))
    except FileNotFoundError:
        return Mark()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JournalError(f"{path}: is not the mark of a journal: {error}") from error


def write_mark(journal: Path, head: Head, *, signs: bool) -> None:
    """Replace the mark atomically. Raises OSError.

    A key in the same directory that signs becomes read-only: it shows that a journal was here.
    """
    path, key = mark_path(journal), journal.with_name(KEY_FILE)
    beside = signs and key.exists()
    text = json.dumps({"seq": head.seq, "hash": head.hash, "key": key.name if beside else ""}) + "\n"
    replace_file(path, text.encode(), mode=0o600, durable=True)
    if beside:
        with suppress(OSError):  # the key of another account: the mark names it
            key.chmod(0o400)


def key_has_signed(journal: Path) -> bool:
    """Whether the key beside the journal has signed entries."""
    key = journal.with_name(KEY_FILE)
    return key.exists() and not key.stat().st_mode & 0o200
