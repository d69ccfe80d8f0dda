"""Queries a Prometheus server for single numbers, blocking the calling thread.

Imported only by a running `prometheus` sensor: prometheus-api-client imports `requests` and more.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from math import isfinite
from reprlib import Repr
from typing import Any

import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.util.retry import Retry

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.ports import Now
from flettner.agent.io.bounded import join_chunks, parse_json
from flettner.sensors.prometheus.selectors import build_age_query

_STATUS = re.compile(r"HTTP Status Code (\d+) \((.*)\)", re.DOTALL)  # the second is a bytes literal
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
    """`why` is empty with a value, and without one if that is no error: no series, no traffic."""

    value: float | None
    why: str = ""


class Connection:
    """No retries: the next tick is the retry. `timeout_s` for each request, to connect and between bytes."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        session = requests.Session()
        session.hooks["response"] = [_read_bounded]
        self._connect = PrometheusConnect(url, retry=Retry(total=0), session=session, timeout=timeout_s)

    def close(self) -> None:
        self._connect.close()

    def run(self, queries: Mapping[str, str], stale_after_s: float, now: Now) -> dict[str, QueryResult]:
        """Run the queries. Raises SensorError if the server does not answer like a Prometheus."""
        return {name: self._run_query(promql, stale_after_s, now) for name, promql in queries.items()}

    def _run_query(self, promql: str, stale_after_s: float, now: Now) -> QueryResult:
        try:
            result = self._fetch(promql)
            value = read_number(result)
            if value is not None:
                check_time(result, stale_after_s, now_s=now().timestamp())
            ages = build_age_query(promql)
            if value is None or ages is None:
                return QueryResult(value)
            age_s = read_number(self._fetch(ages), finite=False)
        except QueryError as error:
            return QueryResult(None, str(error))
        if age_s is not None and age_s > stale_after_s:
            old = f"{age_s:.1f} s old, or from the future" if isfinite(age_s) else "of series that have ended"
            return QueryResult(None, f"reads samples that are {old}; stale_after_s is {stale_after_s:g}")
        return QueryResult(value)

    def _fetch(self, promql: str) -> Any:  # noqa: ANN401  any JSON
        try:
            return self._connect.custom_query(promql)
        except PrometheusApiClientException as error:
            status, reason = _parse_refusal(str(error))
            if status in _REFUSALS:
                raise QueryError(f"{promql!r} is refused: {reason}") from error
            raise SensorError(f"{self._url} answers {status or ''} {reason}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SensorError(f"{self._url} does not answer like a Prometheus: {error!r}"[:_SHOWN]) from error
        except OSError as error:  # all other errors of `requests`
            reason = str(getattr(error.args[0], "reason", error) if error.args else error)
            raise SensorError(f"{self._url} does not answer: {reason[:_SHOWN]}") from error


def _read_bounded(answer: requests.Response, *_: object, **__: object) -> None:
    """Read the body with a size limit, before `requests` reads it. Raises ValueError if it is too large."""
    try:
        answer._content = join_chunks(answer.iter_content(_AT_ONCE))  # noqa: SLF001  the cache of `requests`
    except ValueError:
        answer.close()
        raise


def _parse_refusal(message: str) -> tuple[int | None, str]:
    """Parse the status and Prometheus' own error out of the client library's message."""
    found = _STATUS.fullmatch(message)
    if found is None:
        return None, message[:_SHOWN]
    # The message shows the body as Python shows bytes. ast.literal_eval would parse it too, but the AST of
    # Python 3.11 must not be used in two threads at once (gh-106905), and queries run in threads.
    try:
        body = parse_json(found[2][2:-1].encode("ascii").decode("unicode_escape").encode("latin-1"))
    except ValueError:
        body = None
    reason = body.get("error") if isinstance(body, dict) else None
    return int(found[1]), (reason if isinstance(reason, str) else found[2])[:_SHOWN]


def check_time(result: object, stale_after_s: float, *, now_s: float) -> None:
    """Raise QueryError unless the result is of now, by this host's clock: of a cache, it is of the past."""
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


def _labels(series: Sequence[object]) -> str:
    shown = (one.get("metric") if isinstance(one, dict) else one for one in series[:_SERIES_SHOWN])
    return ", ".join(map(_BRIEF.repr, shown))[:_SHOWN]


def _number(text: str, *, finite: bool) -> float | None:
    try:
        value = float(text)
    except ValueError as error:
        raise QueryError(f"returns text, not a number: {text[:_SHOWN]!r}") from error
    return value if isfinite(value) or (not finite and value > 0) else None
