"""Joins the proxy's records of a request and of its attempts into the outcome of each attempt.

Only the log of requests shows client disconnects and the content of the body; see
`flettner.clients.envoy_records.record`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.reading import Request, RequestOutcome
from flettner.clients.envoy_records.record import (
    ATTEMPTS,
    ENDED,
    REQUESTS,
    Field,
    server_of_cluster,
)
from flettner.sensors.proxy_requests.clients import UNKNOWN, ClientBuckets, ClientFinder, read_buckets

CLIENT_LEFT = frozenset({"DC", "DR"})
"""Envoy's response flags: downstream connection terminated, downstream reset. Others are server failures."""

CLIENT_ERROR, SERVER_ERROR = 400, 500
BROKEN = frozenset({"failed", "truncated", "aborted"})
CLIENT_LEFT_CODES = frozenset({408, 499})
"""Request timeout, client closed request: statuses for a client that disconnected."""

END_WITHIN_S = 15.0  # from an attempt's end to the request's; longer only for slow clients
ATTEMPT_WITHIN_S = 3.0  # the logs use two connections, each flushed four times a second
KEPT_S = 600.0  # for which decided or silent requests are kept
MOST_OPEN = 50_000

STREAMS_END_IN_DONE = ("/completions", "/transcriptions", "/translations")
"""Paths whose streams end with `[DONE]`, unlike /v1/responses and /v1/messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRecord:
    """`attempt`: its number (us), or the number of attempts so far (ds)."""

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
    stream: bool = False  # the client requested a stream
    events: bool = False  # the answer is an event stream
    tokens: int | None = None
    request_bytes: int | None = None  # absent in the records of an older configuration
    done: bool = False
    error: bool = False  # the stream contained an error
    aborted: bool = False
    unknown_model: str = ""  # the server's answer says that it does not serve it
    client: ClientBuckets = UNKNOWN

    @property
    def client_left(self) -> bool:
        return bool(self.flags & CLIENT_LEFT)

    @property
    def server_broke(self) -> bool:
        return bool(self.flags - CLIENT_LEFT)

    @property
    def began_s(self) -> float | None:
        """The time of arrival, which is the end of the request's id: see `UNIQUE_ID`."""
        try:
            seconds = float(self.id.rpartition("-")[2])
        except ValueError:
            return None
        return seconds if isfinite(seconds) else None


def parse_record(tag: str, fields: Mapping[str, Any]) -> AccessRecord:
    """Parse a record. Raises SensorError if it has another format."""
    try:
        ttft_us, tokens = fields.get(Field.TTFT_US), fields.get(Field.TOKENS)
        size = fields.get(Field.REQUEST_BYTES)
        whole_s = _seconds(fields[Field.DURATION_MS] or 0, 1e3)
        waited_s = _seconds(fields.get(Field.WAITED_MS) or 0, 1e3)  # in the proxy
        of_attempt = {ATTEMPTS: True, REQUESTS: False}[tag]
        return AccessRecord(
            of_attempt=of_attempt,
            id=str(fields[Field.ID]),
            server=server_of_cluster(str(fields[Field.SERVER] or "")),
            path=str(fields[Field.PATH] or "").partition("?")[0],
            code=int(fields[Field.CODE] or 0),
            flags=frozenset(str(fields[Field.FLAGS] or "-").split(",")) - {"-"},
            attempt=int(fields[Field.ATTEMPT if of_attempt else Field.ATTEMPTS] or 0),
            duration_s=max(0.0, whole_s - waited_s),
            ttft_s=None if ttft_us is None else _seconds(ttft_us, 1e6),
            ended=of_attempt or fields[Field.TYPE] == ENDED,
            stream=fields.get(Field.STREAM) is True,
            events=fields.get(Field.EVENTS) is True,
            tokens=None if tokens is None else int(tokens),
            request_bytes=None if size is None else int(size),
            done=fields.get(Field.DONE) is True,
            error=fields.get(Field.ERROR) is True,
            aborted=fields.get(Field.ABORTED) is True,
            unknown_model=str(fields.get(Field.UNKNOWN_MODEL) or ""),
            client=read_buckets(fields.get(Field.CLIENT)),
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise SensorError(f"a record of another format: {error!r}") from error


def _seconds(value: Any, per_s: float) -> float:  # noqa: ANN401  any msgpack value
    seconds = float(value) / per_s
    if not isfinite(seconds) or seconds < 0:
        raise ValueError(f"{value!r} is not a duration")
    return seconds


def classify(attempt: AccessRecord, end: AccessRecord | None) -> RequestOutcome:
    """Classify an attempt. `end`: the request's own record, if this attempt was its last."""
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


@dataclass(slots=True)
class _Open:
    """A request that is not fully known yet."""

    updated_s: float
    attempts: dict[int, AccessRecord] = field(default_factory=dict)  # finished, not counted yet
    counted: set[int] = field(default_factory=set)
    stalled: set[int] = field(default_factory=set)  # attempts that were reported as stalled
    end: AccessRecord | None = None
    decided: bool = False


@dataclass(slots=True, kw_only=True)
class OpenRequests:
    """Joins records into requests. Times are of a monotonic clock, in seconds."""

    stalled_after_s: float
    unstreamed_stalled_after_s: float
    _clients: ClientFinder = field(default_factory=ClientFinder, init=False)
    _open: dict[str, _Open] = field(default_factory=dict, init=False)
    _out: list[Request] = field(default_factory=list, init=False)
    _lost: list[str] = field(default_factory=list, init=False)

    def add(self, record: AccessRecord, now_s: float) -> None:
        request = self._open.setdefault(record.id, _Open(now_s))
        request.updated_s = now_s
        if request.decided:
            return
        if record.of_attempt:
            self._add_attempt(request, record)
        elif record.ended:
            request.end = record
        else:
            self._check_stall(request, record)
        if request.end and len(request.counted) + len(request.attempts) >= request.end.attempt:
            self._decide(request)
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def add_ended(self, record: AccessRecord) -> None:
        """Add a request that has no other record."""
        self._report(record, classify(record, record))
        self._note_loss(record)

    def _report(
        self,
        record: AccessRecord,
        outcome: RequestOutcome,
        end: AccessRecord | None = None,
        *,
        stalled: bool = False,
    ) -> None:
        """`end`: the request's own record, if this attempt was its last."""
        request = Request(
            server=record.server,
            outcome=outcome,
            status=record.code,
            duration_s=record.duration_s,
            ttft_s=record.ttft_s,
            tokens=end.tokens if end else None,
            request_bytes=end.request_bytes if end else None,
            began_s=record.began_s,
            stalled=stalled,
            unknown_model=end.unknown_model if end else "",
            client=self._clients.bucket_of(record.client),
            pinned=record.client.session is not None,
        )
        self._out.append(request)

    def _add_attempt(self, request: _Open, record: AccessRecord) -> None:
        if record.attempt in request.counted:
            return
        if record.code >= SERVER_ERROR or record.server_broke:  # counted now: its retry may run for minutes
            request.counted.add(record.attempt)
            stalled = record.attempt in request.stalled
            self._report(record, classify(record, None), stalled=stalled)
        else:
            request.attempts[record.attempt] = record

    def _check_stall(self, request: _Open, record: AccessRecord) -> None:
        limit_s = self.stalled_after_s if record.stream else self.unstreamed_stalled_after_s
        reported = request.counted | request.stalled
        no_byte = record.ttft_s is None and record.server and record.attempt not in reported
        if no_byte and record.duration_s >= limit_s:
            request.stalled.add(record.attempt)
            self._report(record, "stalled")

    def _decide(self, request: _Open) -> None:
        """Count the remaining attempts; without a record of the last attempt, use the request's."""
        end = request.end
        request.decided = True
        if end and end.server and end.attempt not in request.counted:
            request.attempts.setdefault(end.attempt, end)
        for number, attempt in request.attempts.items():
            last = end if end and number == end.attempt else None
            stalled = number in request.stalled
            self._report(attempt, classify(attempt, last), last, stalled=stalled)
        request.attempts.clear()
        if end:
            self._note_loss(end)

    def _note_loss(self, end: AccessRecord) -> None:
        """Note whether the client lost the request: no other attempt follows."""
        if end.server and classify(end, end) in BROKEN:
            self._lost.append(end.server)

    def take_decided(self, now_s: float) -> tuple[Request, ...]:
        """Return the requests decided since the last call."""
        for key, request in list(self._open.items()):
            silent_s = now_s - request.updated_s
            limit_s = ATTEMPT_WITHIN_S if request.end else END_WITHIN_S
            if not request.decided and (request.end or request.attempts) and silent_s > limit_s:
                self._decide(request)
            if silent_s > KEPT_S:
                del self._open[key]
        requests, self._out = tuple(self._out), []
        return requests

    def take_lost(self) -> tuple[str, ...]:
        """Return the server of the last attempt of each request that a client lost since the last call."""
        lost, self._lost = tuple(self._lost), []
        return lost
