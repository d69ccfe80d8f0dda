"""A streamed answer on the client side: times of its tokens, and its outcome."""

import json
from typing import Any

from flettner.simulator.tally import LoadOutcome


class CompletionWriter:
    """A stream of server-sent events as it arrives."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.text: list[str] = []
        self.tokens = 0
        self._first: float | None = None
        self._last = at
        self._reason: str | None = None
        self._error: str | None = None
        self._done = False

    @property
    def ttft_s(self) -> float | None:
        return None if self._first is None else self._first - self.at

    @property
    def itl_s(self) -> float | None:
        """The mean gap between tokens; None for fewer than two."""
        gaps = self.tokens - 1
        return None if self._first is None or gaps < 1 else (self._last - self._first) / gaps

    def take(self, line: bytes, now: float) -> None:
        """Read one line. Raises ValueError for data that is not JSON."""
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self._done = True
            return
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            self._error = str(event["error"])
            return
        if usage := event.get("usage"):
            self.tokens = usage["completion_tokens"]
        for choice in event.get("choices", ()):
            self._reason = choice.get("finish_reason") or self._reason
            piece = (choice.get("delta") or {}).get("content") or choice.get("text")
            if piece:
                self.text.append(piece)
                self.tokens += 1
                self._first = now if self._first is None else self._first
                self._last = now

    def verdict(self) -> tuple[LoadOutcome, str]:
        """Return the outcome of a status 200 whose stream ended normally."""
        if self._error is not None:
            return "failed", f"error in the stream: {self._error[:80]}"
        if self._reason == "abort":
            return "aborted", "finish_reason abort"
        if self._reason is None or not self._done:
            return "truncated", "ended without finish_reason or [DONE]"
        return "ok", ""

    def cut(self, why: str) -> tuple[LoadOutcome, str]:
        """Return the outcome of a broken connection: truncated if any text had arrived."""
        return ("failed", why) if self._first is None else ("truncated", why)
