"""A target's last 24 hours, one row a minute, kept in a file over restarts of the daemon.

What is missing at a start comes from a source of history, where the target has one. No rollout is decided by
a row.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Protocol, runtime_checkable

import structlog
from pydantic import TypeAdapter, ValidationError

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.events import Observed
from flettner.agent.domain.headroom import HOUR_S, WEEK_HOURS
from flettner.agent.domain.model import Server
from flettner.agent.domain.reading import Reading
from flettner.agent.observe.minute_rows import MINUTE_S, MinuteRow, OpenMinute
from flettner.agent.runtime.peak_hours import PeakHours
from flettner.primitives.files import replace_file

KEPT_MINUTES = 24 * 60
HISTORY_WITHIN_S = 60.0
SHORTEST_GAP_S = 5 * MINUTE_S  # that is worth queries
_LINE = TypeAdapter(MinuteRow)
log = structlog.get_logger()


@runtime_checkable
class HistorySource(Protocol):
    """A sensor that also knows what servers did before the daemon looked."""

    async def read_history(self, servers: Sequence[Server], after: int, until: int) -> Sequence[MinuteRow]:
        """Return rows of the minutes from `after` to `until`, Unix times, s. Raises SensorError."""
        ...

    async def read_peaks(self, servers: Sequence[Server], after: int, until: int) -> Mapping[int, float]:
        """Return requests per second of the busiest minute, by the Unix time of its hour.

        Raises SensorError.
        """
        ...


@dataclass(slots=True)
class TimeSeries:
    """Rows of the last 24 hours. A line of the `file` that is lost is only a gap."""

    file: Path | None = None
    peaks: PeakHours = field(default_factory=PeakHours)
    _minutes: deque[MinuteRow] = field(default_factory=lambda: deque(maxlen=KEPT_MINUTES))
    _open: OpenMinute | None = None
    _last: Reading | None = None  # the last added one
    _lines: int = 0  # of the file
    _writable: bool = True

    @classmethod
    def load(cls, file: Path) -> "TimeSeries":
        """Load the file; unreadable lines are skipped."""
        series = cls(file=file, peaks=PeakHours.load(file.with_name("hours.jsonl")))
        try:
            lines = file.read_bytes().splitlines()
        except FileNotFoundError:
            return series
        except OSError as error:
            log.warning("series.unreadable", file=str(file), why=error.strerror)
            return series
        series._lines = len(lines)
        for minute in _parse_rows(lines):
            if not series._minutes or minute.at > series._minutes[-1].at:
                series._minutes.append(minute)
                series.peaks.add(minute)
        return series

    def minutes(self) -> Sequence[MinuteRow]:
        """Return the completed minutes with data, oldest first."""
        return tuple(self._minutes)

    def latest(self, count: int) -> Sequence[MinuteRow]:
        """Return the last of them, oldest first."""
        return tuple(islice(reversed(self._minutes), count))[::-1]

    def add(self, observed: Observed) -> None:
        """Add one second. If the clock was set back, the open minute continues until its time has passed."""
        at = int(observed.at.timestamp()) // MINUTE_S * MINUTE_S
        if self._open is None:
            self._open = OpenMinute(at)
        elif at > self._open.at:
            self._close_minute(self._open)
            self._open = OpenMinute(at)
        self._last = self._open.add(observed, self._last)

    async def load_history(self, source: HistorySource, servers: Sequence[Server], now: datetime) -> None:
        """Add what is missing up to now. An error is logged and ends no other task."""
        until = int(now.timestamp())
        if await self._load_minutes(source, servers, until):
            await self._load_peaks(source, servers, until)

    async def _load_minutes(self, source: HistorySource, servers: Sequence[Server], until: int) -> bool:
        """Whether the source answers, or need not be asked."""
        after = self._minutes[-1].at + MINUTE_S if self._minutes else 0
        if until - after < SHORTEST_GAP_S:
            return True
        try:
            async with asyncio.timeout(HISTORY_WITHIN_S):
                rows = await source.read_history(servers, after, until)
        except TimeoutError:
            log.warning("history.not_loaded", why=f"no answer within {HISTORY_WITHIN_S:g} s")
        except SensorError as error:
            log.warning("history.not_loaded", why=str(error))
        except Exception:  # a defect of charts must not end the daemon
            log.exception("history.failed")
        else:
            self._merge(rows)
            span = {"since": _format_time(rows[0].at), "until": _format_time(rows[-1].at)} if rows else {}
            log.info("history.loaded", minutes=len(rows), **span)
            return True
        return False

    async def _load_peaks(self, source: HistorySource, servers: Sequence[Server], until: int) -> None:
        """Add the busiest minutes of the week before what is known."""
        hours, week = self.peaks.hours(), until - WEEK_HOURS * HOUR_S
        if len(hours) >= WEEK_HOURS:
            return
        try:
            async with asyncio.timeout(HISTORY_WITHIN_S):
                self.peaks.merge(await source.read_peaks(servers, week, until))
        except (TimeoutError, SensorError) as error:
            log.warning("peaks.not_loaded", why=str(error) or f"no answer within {HISTORY_WITHIN_S:g} s")
        except Exception:  # a defect of a note must not end the daemon
            log.exception("peaks.failed")

    def _merge(self, rows: Iterable[MinuteRow]) -> None:
        """Add the rows of minutes that have none; save them all."""
        present = {row.at for row in self._minutes}
        missing = [row for row in rows if row.at not in present]
        merged = [*self._minutes, *missing]
        self._minutes = deque(sorted(merged, key=lambda row: row.at), maxlen=KEPT_MINUTES)
        for row in missing:
            self.peaks.add(row)
        if self.file is not None:
            self._write(self.file, None)

    def _close_minute(self, minute: OpenMinute) -> None:
        row = minute.row()
        if row is None or (self._minutes and row.at <= self._minutes[-1].at):
            return
        self._minutes.append(row)
        self.peaks.add(row, minute.kv_tokens)
        if self.file is not None:
            self._write(self.file, row if self._lines < 2 * KEPT_MINUTES else None)

    def _write(self, file: Path, minute: MinuteRow | None) -> None:
        """Append the row; None: rewrite the file. A full disk only costs rows."""
        try:
            if minute is None:
                replace_file(file, b"".join(_encode_row(minute_row) for minute_row in self._minutes))
                self._lines = len(self._minutes)
            else:
                with file.open("ab") as lines:
                    lines.write(_encode_row(minute))
                self._lines += 1
        except OSError as error:
            if self._writable:
                log.warning("series.unwritable", file=str(file), why=error.strerror)
            self._writable = False
        else:
            self._writable = True


def _format_time(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def _encode_row(minute: MinuteRow) -> bytes:
    return _LINE.dump_json(minute, exclude_none=True) + b"\n"


def _parse_rows(lines: Iterable[bytes]) -> Iterable[MinuteRow]:
    for line in lines:
        try:
            yield _LINE.validate_json(line)
        except ValidationError:  # torn by a crash, or from another version
            continue
