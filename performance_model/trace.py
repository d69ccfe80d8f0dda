"""A recorded load: when requests arrived and how many tokens they had. It never holds text.

A file has one JSON object per line. The first is the header, {"flettner_trace": 1}; each other line is one
request:
{"arrival_s": 0.25, "prompt_tokens": 900, "output_tokens": 120, "cached_tokens": 512, "prefix_group": "a"}.
The last two may be absent.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flettner.performance_model.errors import PredictionInputError

FORMAT, VERSION = "flettner_trace", 1
_MAX_TOKENS = 1 << 27  # 134 million; a larger count is a mistake
_COUNTS = {"prompt_tokens": 1, "output_tokens": 1, "cached_tokens": 0}
_FIELDS = frozenset({"arrival_s", "prefix_group", *_COUNTS})


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """`cached_tokens`: the part of the prompt that an earlier request of `prefix_group` had in common."""

    arrival_s: float  # since the begin of the trace
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    prefix_group: str = ""  # an opaque name; empty: shares nothing


Trace = Sequence[TraceRequest]
"""In order of arrival."""


def read_trace(lines: Iterable[str], name: str = "trace") -> tuple[TraceRequest, ...]:
    """Parse a file's lines. Raises PredictionInputError with the line's number."""
    requests: list[TraceRequest] = []
    is_headed = False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        row = _parse_object(line, where)
        if not is_headed:
            _check_header(row, where)
            is_headed = True
            continue
        requests.append(_parse_request(row, where))
    if not requests:
        raise PredictionInputError(
            f'{name}: holds no request; a trace begins with {{"{FORMAT}": {VERSION}}} and has one '
            "request per line"
        )
    return tuple(sorted(requests, key=lambda request: request.arrival_s))


def write_trace(trace: Trace) -> Iterator[str]:
    """The lines of a file, each with its line feed."""
    yield json.dumps({FORMAT: VERSION}) + "\n"
    for request in trace:
        row: dict[str, object] = {
            "arrival_s": round(request.arrival_s, 6),
            "prompt_tokens": request.prompt_tokens,
            "output_tokens": request.output_tokens,
        }
        if request.cached_tokens:
            row["cached_tokens"] = request.cached_tokens
        if request.prefix_group:
            row["prefix_group"] = request.prefix_group
        yield json.dumps(row) + "\n"


def duration_s(trace: Trace) -> float:
    """Seconds from 0 to the last arrival."""
    return trace[-1].arrival_s if trace else 0.0


def mean_rate(trace: Trace) -> float | None:
    """Requests per second; None if all come at once."""
    seconds = duration_s(trace)
    return len(trace) / seconds if seconds else None


def mean_context(trace: Trace) -> float:
    """Tokens of KV cache that a decoding sequence reads, on average over the steps.

    Its prompt and half of its output, for as long as it has output.
    """
    outputs = sum(request.output_tokens for request in trace)
    read = sum(
        (request.prompt_tokens + request.output_tokens / 2) * request.output_tokens for request in trace
    )
    return read / outputs if outputs else 0.0


def _parse_object(line: str, where: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PredictionInputError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise PredictionInputError(f"{where}: not a JSON object; each line is one, such as a request")
    return row


def _check_header(row: dict[str, object], where: str) -> None:
    version = row.get(FORMAT)
    if version is None:
        raise PredictionInputError(f'{where}: the first line must be the header {{"{FORMAT}": {VERSION}}}')
    if version != VERSION:
        raise PredictionInputError(f"{where}: format {version!r} of a trace; this flettner reads {VERSION}")


def _parse_request(row: dict[str, object], where: str) -> TraceRequest:
    unknown = sorted(row.keys() - _FIELDS)
    if unknown:
        raise PredictionInputError(
            f"{where}: unknown field {unknown[0]}; known: {', '.join(sorted(_FIELDS))}"
        )
    counts = {field: _parse_count(row, field, least, where) for field, least in _COUNTS.items()}
    arrival = row.get("arrival_s")
    if isinstance(arrival, bool) or not isinstance(arrival, (int, float)) or not 0 <= arrival < 1e12:  # noqa: PLR2004 - 30,000 years
        raise PredictionInputError(
            f"{where}: arrival_s {arrival!r}: must be seconds since the begin, at least 0"
        )
    group = row.get("prefix_group", "")
    if not isinstance(group, str):
        raise PredictionInputError(f"{where}: prefix_group {group!r}: must be text")
    if counts["cached_tokens"] > counts["prompt_tokens"]:
        raise PredictionInputError(f"{where}: cached_tokens exceeds prompt_tokens {counts['prompt_tokens']}")
    return TraceRequest(arrival_s=float(arrival), prefix_group=group, **counts)


def _parse_count(row: dict[str, object], field: str, least: int, where: str) -> int:
    value = row.get(field, 0 if least == 0 else None)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_TOKENS:
        raise PredictionInputError(f"{where}: {field} {value!r}: must be a whole number, at least {least}")
    return value
