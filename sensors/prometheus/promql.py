"""Queries a Prometheus server for single numbers and their history, blocking the calling thread.

Imported only by a running `prometheus` sensor: prometheus-api-client imports `requests` and more.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from io import BytesIO
from math import isfinite
from reprlib import Repr
from typing import Any

import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.util.retry import Retry

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.ports import Now
from flettner.primitives.bounded import join_chunks, parse_json
from flettner.sensors.prometheus.selectors import build_age_query

_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})  # cannot be parsed, executed
_SHOWN = 200
_SERIES_SHOWN = 10
_AT_ONCE = 2**16
NEVER_S = 1e12
CLOCKS_DIFFER_S = 5.0  # between this host and Prometheus, at most
_BRIEF = Repr()  # limits the depth
_BRIEF.maxdict = _BRIEF.maxstring = 60


class QueryError(SensorError):
    """The server works, but rejects the query or returns no single number."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """`why` is the reason for a missing value; empty if that is no error (no series, no traffic)."""

    value: float | None
    why: str = ""


class Connection:
    """No retries: the next tick is the retry. `timeout_s` for each request, to connect and between bytes."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        session = requests.Session()
        session.hooks["response"] = [_read_answer]
        self._connect = PrometheusConnect(url, retry=Retry(total=0), session=session, timeout=timeout_s)

    def close(self) -> None:
        self._connect.close()

    def run(self, queries: Mapping[str, str], stale_after_s: float, now: Now) -> dict[str, QueryResult]:
        """Run the queries. Raises SensorError if the server does not answer like a Prometheus."""
        return {name: self._run_query(promql, stale_after_s, now) for name, promql in queries.items()}

    def _run_query(self, promql: str, stale_after_s: float, now: Now) -> QueryResult:
        try:
            result = self._fetch(promql, self._connect.custom_query)
            value = read_number(result)
            if value is not None:
                check_time(result, stale_after_s, now_s=now().timestamp())
            ages = build_age_query(promql)
            if value is None or ages is None:
                return QueryResult(value)
            age_s = read_number(self._fetch(ages, self._connect.custom_query), finite=False)
        except QueryError as error:
            return QueryResult(None, str(error))
        if age_s is not None and age_s > stale_after_s:
            old = f"{age_s:.1f} s old, or from the future" if isfinite(age_s) else "of series that have ended"
            return QueryResult(None, f"reads samples that are {old}; stale_after_s is {stale_after_s:g}")
        return QueryResult(value)

    def run_range(self, promql: str, first_s: int, last_s: int, step_s: int) -> dict[int, float]:
        """Return the value at each step, by its Unix time, s. Steps without a finite value are left out.

        Raises SensorError, and QueryError if the query is refused or has several series.
        """
        query = partial(
            self._connect.custom_query_range,
            start_time=datetime.fromtimestamp(first_s, UTC),
            end_time=datetime.fromtimestamp(last_s, UTC),
            step=str(step_s),
        )
        result = self._fetch(promql, query)
        return read_points(result, frozenset(range(first_s, last_s + 1, step_s)))

    def _fetch(self, promql: str, query: Callable[[str], Any]) -> Any:  # noqa: ANN401  any JSON
        try:
            return query(promql)
        except _RefusedError as error:
            if error.status in _REFUSALS:
                raise QueryError(f"{promql!r} is refused: {error.reason}") from error
            raise SensorError(f"{self._url} answers {error.status} {error.reason}") from error
        except PrometheusApiClientException as error:  # a redirect, or a success without a body
            raise SensorError(f"{self._url} does not answer like a Prometheus: {error}"[:_SHOWN]) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SensorError(f"{self._url} does not answer like a Prometheus: {error!r}"[:_SHOWN]) from error
        except OSError as error:  # all other errors of `requests`
            reason = str(getattr(error.args[0], "reason", error) if error.args else error)
            raise SensorError(f"{self._url} does not answer: {reason[:_SHOWN]}") from error


class _RefusedError(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason[:_SHOWN]


def _read_answer(answer: requests.Response, *_: object, **__: object) -> requests.Response:
    """Read the body of the answer, with a size limit, before the client library reads it.

    Raises ValueError for a body that is too large, _RefusedError with the reason in the body of a refusal.
    """
    try:
        body = join_chunks(answer.iter_content(_AT_ONCE))
    except ValueError:
        answer.close()
        raise
    if answer.status_code >= HTTPStatus.BAD_REQUEST:
        raise _RefusedError(answer.status_code, _read_reason(body))
    bounded = requests.Response()
    bounded.status_code, bounded.reason, bounded.headers = answer.status_code, answer.reason, answer.headers
    bounded.url, bounded.request, bounded.raw = answer.url, answer.request, BytesIO(body)
    return bounded


def _read_reason(body: bytes) -> str:
    """Return Prometheus' own words, else the beginning of the body."""
    try:
        document = parse_json(body)
    except ValueError:
        document = None
    reason = document.get("error") if isinstance(document, dict) else None
    return reason if isinstance(reason, str) else repr(body[:_SHOWN])


def check_time(result: object, stale_after_s: float, *, now_s: float) -> None:
    """Raise QueryError unless the result is current by this host's clock; a cache returns old results."""
    match result:
        case [float() | int() as at_s, str()] | [{"value": [float() | int() as at_s, str()]}]:
            ahead_s = max(-NEVER_S, min(at_s, NEVER_S)) - now_s  # JSON has larger integers than floats
        case _:
            raise QueryError(f"returns no time: {_BRIEF.repr(result)[:_SHOWN]}")
    if not -(stale_after_s + CLOCKS_DIFFER_S) <= ahead_s <= CLOCKS_DIFFER_S:
        side = "in the future" if ahead_s > 0 else "ago"
        raise QueryError(
            f"is of {abs(ahead_s):.6g} s {side} by this host's clock: a cached answer, or compare the clocks"
        )


def read_number(result: object, *, finite: bool = True) -> float | None:
    """Return the value of a scalar or of a vector's only series; None if it is empty or NaN.

    Raises QueryError for several series, ranges, text and native histograms.
    """
    match result:
        case []:
            return None
        case [float() | int(), str(text)]:  # a scalar
            return _number(text, finite=finite)
        case [{"value": [_, str(text)]}]:
            return _number(text, finite=finite)
        case [{"values": _}, *_]:
            raise QueryError("returns a range of samples, not a number: wrap it in rate() or max_over_time()")
        case [_, _, *_]:
            raise QueryError(
                f"returns {len(result)} series, not one: sum them or select one, {_labels(result)}"
            )
        case _:
            raise QueryError(f"returns no number: {_BRIEF.repr(result)[:_SHOWN]}")


def read_points(result: object, times: Collection[int]) -> dict[int, float]:
    """Return the finite values of a range's only series at these times; {} without a series.

    Raises QueryError for several series, and for all else than a range of numbers.
    """
    match result:
        case []:
            return {}
        case [{"values": [*points]}]:
            pass
        case [_, _, *_]:
            raise QueryError(f"returns {len(result)} series, not one: {_labels(result)}")
        case _:
            raise QueryError(f"returns no range: {_BRIEF.repr(result)[:_SHOWN]}")
    values: dict[int, float] = {}
    for point in points:
        match point:
            case [float() | int() as at_s, str(text)]:
                value = _number(text, finite=True)
                if value is not None and at_s in times:
                    values[int(at_s)] = value
            case _:
                raise QueryError(f"returns no number: {_BRIEF.repr(point)[:_SHOWN]}")
    return values


def _labels(series: Sequence[object]) -> str:
    shown = (entry.get("metric") if isinstance(entry, dict) else entry for entry in series[:_SERIES_SHOWN])
    return ", ".join(map(_BRIEF.repr, shown))[:_SHOWN]


def _number(text: str, *, finite: bool) -> float | None:
    try:
        value = float(text)
    except ValueError as error:
        raise QueryError(f"returns text, not a number: {text[:_SHOWN]!r}") from error
    return value if isfinite(value) or (not finite and value > 0) else None
