"""Progress on stderr: a line that is redrawn in a terminal, a line for each trial elsewhere."""

import sys
from dataclasses import dataclass, field
from typing import TextIO

from flettner.tools.terminal.cell_width import clip
from flettner.tools.terminal.values import escape_text

_WIDTH = 24


@dataclass(slots=True)
class Progress:
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    title: str = ""
    _shown: str = ""

    def begin(self, title: str) -> None:
        self.end()
        self.title = escape_text(title)
        if not self.stream.isatty():
            self.stream.write(f"{self.title}\n")
            self.stream.flush()

    def show(self, what: str, share: float) -> None:
        if not self.stream.isatty():
            return
        full = round(_WIDTH * min(1.0, share))
        text = f"[{'#' * full}{'.' * (_WIDTH - full)}] {self.title}: {what} {share:.0%}"
        if text != self._shown:
            self._shown = text
            self.stream.write(f"\r\x1b[K{clip(text, 110)}")
            self.stream.flush()

    def end(self) -> None:
        if self._shown:
            self.stream.write("\r\x1b[K")
            self._shown = ""
