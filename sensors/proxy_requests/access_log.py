"""Joins what the proxy writes of a request and of each attempt at it into how each attempt went.

Envoy keeps two logs. `us` has one record for each attempt: retries do not hide failures there. `ds` has one
for each request, and more while it runs: only that knows that the client went away, and what the body held.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from agent.domain.errors import SensorError
from agent.domain.reading import Request, RequestOutcome

CLIENT_LEFT = frozenset({"DC", "DR"})
"""Envoy's response flags: downstream connection terminated, downstream reset. All others blame the server."""

CLIENT_ERROR, SERVER_ERROR = 400, 500
CLIENT_LEFT_CODES = frozenset({408, 499})
"""Request timeout, client closed request: statuses that a server or proxy gives a client that has gone."""

END_WITHIN_S = 15.0  # from an attempt's end to the request's: more only where a client reads slowly
ATTEMPT_WITHIN_S = 3.0  # the two logs come over two connections, each written four times a second
KEPT_S = 600.0  # how long what is decided, or silent, is remembered
MOST_OPEN = 50_000

STREAMS_END_IN_DONE = ("/completions", "/transcriptions", "/translations")
"""Paths whose streams must end in `[DONE]`; /v1/responses and /v1/messages end otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRecord:
    """`attempt`: which one it is (us), or how many there were so far (ds)."""

    of_attempt: bool
    id: str
    server: str
    path: str
    code: int
    flags: frozenset[str]
    attempt: int
    duration_s: float
    ttft_s: float | None
    ended: bool
    stream: bool = False  # the client asked for one
    events: bool = False  # the answer was one
    tokens: int | None = None
    done: bool = False
    error: bool = False  # the stream said so
    aborted: bool = False

    @property
    def client_left(self) -> bool:
        return bool(self.flags & CLIENT_LEFT)

    @property
    def server_broke(self) -> bool:
        return bool(self.flags - CLIENT_LEFT)


def record_of(tag: str, fields: Mapping[str, Any]) -> AccessRecord:
    """Raises SensorError on what is not a record of ours."""
    try:
        ttft_us, tokens = fields.get("ttft_us"), fields.get("tokens")
        duration_s = _seconds(fields["duration_ms"] or 0, 1e3)
        of_attempt = {"us": True, "ds": False}[tag]
        return AccessRecord(
            of_attempt=of_attempt,
            id=str(fields["id"]),
            server=str(fields["server"] or ""),
            path=str(fields["path"] or "").partition("?")[0],
            code=int(fields["code"] or 0),
            flags=frozenset(str(fields["flags"] or "-").split(",")) - {"-"},
            attempt=int(fields["attempt" if of_attempt else "attempts"] or 0),
            duration_s=duration_s,
            ttft_s=None if ttft_us is None else _seconds(ttft_us, 1e6),
            ended=of_attempt or fields["type"] == "DownstreamEnd",
            stream=fields.get("stream") is True,
            events=fields.get("events") is True,
            tokens=None if tokens is None else int(tokens),
            done=fields.get("done") is True,
            error=fields.get("error") is True,
            aborted=fields.get("aborted") is True,
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise SensorError(f"a record that is not ours: {error!r}") from error


def _seconds(value: Any, per_s: float) -> float:  # noqa: ANN401  whatever the socket brought
    seconds = float(value) / per_s
    if not isfinite(seconds) or seconds < 0:
        raise ValueError(f"{value!r} is no time")
    return seconds


def outcome_of(attempt: AccessRecord, end: AccessRecord | None) -> RequestOutcome:
    """How an attempt went. `end`: the request's own record, when this attempt was its last."""
    left = attempt.client_left or (end is not None and end.client_left)
    if attempt.code >= SERVER_ERROR:
        return "failed"
    if attempt.code == 0:
        return "gave_up" if left and not attempt.server_broke else "failed"
    if attempt.code >= CLIENT_ERROR and not attempt.server_broke:
        return "gave_up" if left and attempt.code in CLIENT_LEFT_CODES else "refused"
    if end is not None and end.aborted:
        return "aborted"
    if attempt.server_broke or (end is not None and end.error):
        return "truncated"
    if end is None or end.done:
        return "ok"  # clients hang up at [DONE]
    if left:
        return "gave_up"
    cut = end.events and end.path.endswith(STREAMS_END_IN_DONE)
    return "truncated" if cut else "ok"


def _request(record: AccessRecord, outcome: RequestOutcome, tokens: int | None = None) -> Request:
    return Request(
        server=record.server,
        outcome=outcome,
        status=record.code,
        duration_s=record.duration_s,
        ttft_s=record.ttft_s,
        tokens=tokens,
    )


@dataclass(slots=True)
class _Open:
    """A request of which not everything is known yet."""

    heard_s: float
    attempts: dict[int, AccessRecord] = field(default_factory=dict)  # ended, not counted yet
    counted: set[int] = field(default_factory=set)
    end: AccessRecord | None = None
    decided: bool = False


@dataclass(slots=True, kw_only=True)
class OpenRequests:
    """Times are of any clock that never goes back, in seconds."""

    stalled_after_s: float
    unstreamed_stalled_after_s: float
    _open: dict[str, _Open] = field(default_factory=dict)
    _out: list[Request] = field(default_factory=list)

    def take(self, record: AccessRecord, now_s: float) -> None:
        found = self._open.setdefault(record.id, _Open(now_s))
        found.heard_s = now_s
        if found.decided:
            return
        if record.of_attempt:
            self._attempt(found, record)
        elif record.ended:
            found.end = record
        else:
            self._still_runs(found, record)
        if found.end and len(found.counted) + len(found.attempts) >= found.end.attempt:
            self._decide(found)
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _attempt(self, found: _Open, record: AccessRecord) -> None:
        if record.attempt in found.counted:
            return
        if record.code >= SERVER_ERROR or record.server_broke:  # said now: its retry may run for minutes
            found.counted.add(record.attempt)
            self._out.append(_request(record, outcome_of(record, None)))
        else:
            found.attempts[record.attempt] = record

    def _still_runs(self, found: _Open, record: AccessRecord) -> None:
        limit_s = self.stalled_after_s if record.stream else self.unstreamed_stalled_after_s
        waits = record.ttft_s is None and record.server and record.attempt not in found.counted
        if waits and record.duration_s >= limit_s:
            found.counted.add(record.attempt)
            self._out.append(_request(record, "stalled"))

    def _decide(self, found: _Open) -> None:
        """Count what is not counted; where the last attempt has no record, the request's must do."""
        end = found.end
        found.decided = True
        if end and end.server and end.attempt not in found.counted:
            found.attempts.setdefault(end.attempt, end)
        for number, attempt in found.attempts.items():
            last = end if end and number == end.attempt else None
            self._out.append(_request(attempt, outcome_of(attempt, last), last.tokens if last else None))
        found.attempts.clear()

    def fetch(self, now_s: float) -> tuple[Request, ...]:
        """What was decided since the last time."""
        for key, found in list(self._open.items()):
            silent_s = now_s - found.heard_s
            waits_s = ATTEMPT_WITHIN_S if found.end else END_WITHIN_S
            if not found.decided and (found.end or found.attempts) and silent_s > waits_s:
                self._decide(found)
            if silent_s > KEPT_S:
                del self._open[key]
        requests, self._out = tuple(self._out), []
        return requests
