"""The notes of a daemon on its servers, which tell a later daemon how to go on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flettner.primitives.files import replace_file

Note = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Notes:
    """`FOLDER/NAME.json`. A note may hold secrets, so only the user of the daemon can read it."""

    folder: Path

    def read(self, name: str) -> Note | None:
        """Return None if there is no note of this name, or none that can be read."""
        try:
            note = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return note if isinstance(note, dict) else None

    def read_all(self) -> list[Note]:
        """Return the notes that can be read, the latest written first."""
        files = sorted(self.folder.glob("*.json"), key=_written_ns, reverse=True)
        return [note for file in files if (note := self.read(file.stem)) is not None]

    def write(self, name: str, note: Mapping[str, Any]) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self.folder / f"{name}.json", json.dumps(note).encode(), mode=0o600)

    def drop(self, name: str) -> None:
        (self.folder / f"{name}.json").unlink(missing_ok=True)


def _written_ns(file: Path) -> int:
    try:
        return int(file.stat().st_mtime_ns)
    except OSError:
        return 0
