"""The busiest minute of each hour of a target's last week, kept in a file over restarts of the daemon."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pydantic import TypeAdapter, ValidationError

from flettner.agent.domain.headroom import HOUR_S, WEEK_HOURS, HourPeak, KvPeak
from flettner.agent.observe.minute_rows import MinuteRow
from flettner.primitives.files import replace_file

_LINE = TypeAdapter(HourPeak)
log = structlog.get_logger()


@dataclass(slots=True)
class PeakHours:
    """A line of the `file` that is lost is an hour that is not known."""

    file: Path | None = None
    _hours: dict[int, HourPeak] = field(default_factory=dict)

    @classmethod
    def load(cls, file: Path) -> "PeakHours":
        """Load the file; unreadable lines are skipped."""
        peaks = cls(file=file)
        try:
            lines = file.read_bytes().splitlines()
        except FileNotFoundError:
            return peaks
        except OSError as error:
            log.warning("peaks.unreadable", file=str(file), why=error.strerror)
            return peaks
        for line in lines:
            try:
                hour = _LINE.validate_json(line)
            except ValidationError:  # torn by a crash, or from another version
                continue
            peaks._hours[hour.at] = hour
        return peaks

    def hours(self) -> Sequence[HourPeak]:
        """Return the last week, oldest first."""
        return tuple(self._hours[at] for at in sorted(self._hours))

    def highest_rps(self) -> float | None:
        """Return requests per second of the busiest minute that is known; None without any."""
        return max((hour.rps for hour in self._hours.values()), default=None)

    def fullest_kv(self) -> KvPeak | None:
        """Return the fullest KV cache of the hours that it is known of; None without any."""
        known = [hour.kv_tokens for hour in self._hours.values() if hour.kv_tokens is not None]
        return KvPeak(tokens=max(known), hours=len(known)) if known else None

    def add(self, row: MinuteRow, kv_tokens: float | None = None) -> None:
        """Add a minute, again or not; a server that was seen without requests had none."""
        self._raise_to(row.at // HOUR_S * HOUR_S, row.requests_rps or 0.0, kv_tokens)

    def merge(self, peaks: Mapping[int, float]) -> None:
        """Add requests per second by the Unix time of their hour."""
        for at, rps in peaks.items():
            self._raise_to(at, rps)
        self._save()

    def _raise_to(self, at: int, rps: float, kv_tokens: float | None = None) -> None:
        before = self._hours.get(at)
        if before is None:  # once an hour
            self._save()
        known = [kv for kv in (before.kv_tokens if before else None, kv_tokens) if kv is not None]
        self._hours[at] = HourPeak(
            at=at, rps=max(before.rps if before else 0.0, rps), kv_tokens=max(known, default=None)
        )
        for old in [each for each in self._hours if each <= at - WEEK_HOURS * HOUR_S]:
            del self._hours[old]

    def _save(self) -> None:
        """A full disk only costs hours."""
        if self.file is None:
            return
        try:
            replace_file(self.file, b"".join(_LINE.dump_json(hour) + b"\n" for hour in self.hours()))
        except OSError as error:
            log.warning("peaks.unwritable", file=str(self.file), why=error.strerror)
