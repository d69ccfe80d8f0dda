"""Asks a Prometheus server for one number, in the thread it is called from, and says why there is none.

Imported only by a running `prometheus` sensor: prometheus-api-client brings `requests` and more along.
"""

import ast
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

from agent.domain.errors import SensorError
from agent.io.bounded import join_chunks, parse_json
from sensors.prometheus.selectors import age_query

_STATUS = re.compile(r"HTTP Status Code (\d+) \((.*)\)", re.DOTALL)  # the second is a bytes literal
_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})  # cannot be parsed, executed
_SHOWN = 200
_SERIES_SHOWN = 10
_AT_ONCE = 2**16
_BRIEF = Repr()  # goes no deeper than a few levels, however deep the answer is
_BRIEF.maxdict = _BRIEF.maxstring = 60


class QueryError(SensorError):
    """The server is well, the query is not."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """`why` is empty when there is a value, or when there is rightly none: no series, no traffic."""

    value: float | None
    why: str = ""


class Connection:
    """No retries: the next tick is the retry. `timeout_s` for each request, to connect and between bytes."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        session = requests.Session()
        session.hooks["response"] = [_read]
        self._connect = PrometheusConnect(url, retry=Retry(total=0), session=session, timeout=timeout_s)

    def close(self) -> None:
        self._connect.close()

    def ask(self, queries: Mapping[str, str], stale_after_s: float) -> dict[str, QueryResult]:
        """Raises SensorError when the server does not answer, or not as a Prometheus does."""
        return {name: self._answer(promql, stale_after_s) for name, promql in queries.items()}

    def _answer(self, promql: str, stale_after_s: float) -> QueryResult:
        try:
            value = number(self._result(promql))
            ages = age_query(promql)
            if value is None or ages is None:
                return QueryResult(value)
            age_s = number(self._result(ages), finite=False)
        except QueryError as error:
            return QueryResult(None, str(error))
        if age_s is not None and age_s > stale_after_s:
            old = f"{age_s:.1f} s old" if isfinite(age_s) else "of series that have ended"
            return QueryResult(None, f"reads samples that are {old}; stale_after_s is {stale_after_s:g}")
        return QueryResult(value)

    def _result(self, promql: str) -> Any:  # noqa: ANN401  JSON from elsewhere
        try:
            return self._connect.custom_query(promql)
        except PrometheusApiClientException as error:
            status, reason = _refusal(str(error))
            if status in _REFUSALS:
                raise QueryError(f"{promql!r} is refused: {reason}") from error
            raise SensorError(f"{self._url} answers {status or ''} {reason}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SensorError(f"{self._url} does not answer like a Prometheus: {error!r}"[:_SHOWN]) from error
        except OSError as error:  # whatever else `requests` raises
            reason = str(getattr(error.args[0], "reason", error) if error.args else error)
            raise SensorError(f"{self._url} does not answer: {reason[:_SHOWN]}") from error


def _read(answer: requests.Response, *_: object, **__: object) -> None:
    """Read it here, before `requests` reads whatever comes. Raises ValueError when it is too large."""
    try:
        answer._content = join_chunks(answer.iter_content(_AT_ONCE))  # noqa: SLF001  where `requests` keeps it
    except ValueError:
        answer.close()
        raise


def _refusal(said: str) -> tuple[int | None, str]:
    """The status, and Prometheus' own words where there are any, in what the client library says of both."""
    found = _STATUS.fullmatch(said)
    if found is None:
        return None, said[:_SHOWN]
    try:
        body = parse_json(ast.literal_eval(found[2]))
    except (ValueError, SyntaxError):
        body = None
    reason = body.get("error") if isinstance(body, dict) else None
    return int(found[1]), (reason if isinstance(reason, str) else found[2])[:_SHOWN]


def number(result: object, *, finite: bool = True) -> float | None:
    """The value of a scalar or of a vector's only series; None when it is empty or NaN.

    Raises QueryError for several series (never just one of them), ranges, text and native histograms.
    """
    match result:
        case []:
            return None
        case [float() | int(), str(text)]:  # a scalar
            return _number(text, finite=finite)
        case [{"value": [_, str(text)]}]:
            return _number(text, finite=finite)
        case [{"values": _}, *_]:
            raise QueryError(
                "answers a range of samples, not a number: put rate() or max_over_time() around it"
            )
        case [_, _, *_]:
            raise QueryError(
                f"{len(result)} series answer, not one: sum them or select one, {_labels(result)}"
            )
        case _:
            raise QueryError(f"answers no number: {_BRIEF.repr(result)[:_SHOWN]}")


def _labels(series: Sequence[object]) -> str:
    shown = (one.get("metric") if isinstance(one, dict) else one for one in series[:_SERIES_SHOWN])
    return ", ".join(map(_BRIEF.repr, shown))[:_SHOWN]


def _number(text: str, *, finite: bool) -> float | None:
    try:
        value = float(text)
    except ValueError as error:
        raise QueryError(f"answers text, not a number: {text[:_SHOWN]!r}") from error
    return value if isfinite(value) or (not finite and value > 0) else None
