"""Parses selected samples of a Prometheus text page; all other lines are skipped unparsed.

A page is refused early where its form would cost much time or memory: one rank of vLLM has 600 lines of at
most 1 KiB, 350 of them wanted.

The format is Prometheus' "text-based format" 0.0.4 (documentation, "Exposition formats").
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

from flettner.vllm_facts.errors import MetricsPageError

SampleRow = tuple[str, float]
"""The unparsed text between the braces, and the value, which may be NaN or infinite."""

_LABEL = re.compile(r'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*)="([^"\\]*(?:\\.[^"\\]*)*)"')
_LABELS = re.compile(rf"(?:{_LABEL.pattern}(?:,{_LABEL.pattern})*,?)?")
_ESCAPE = re.compile(r"\\(.)")
_SHOWN = 80  # characters of foreign text that an error repeats
MOST_LINES = 100_000
MOST_SAMPLES = 32_768  # of wanted names
LONGEST_SAMPLE = 4096  # characters
_REMEMBERED = 256  # characters of labels that repeat from page to page; longer labels are parsed each time


def decode_page(body: bytes) -> str:
    """Decode the page. Raises MetricsPageError if it is no metrics page or is truncated."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise MetricsPageError(f"not a metrics page: not UTF-8, starts with {body[:_SHOWN]!r}") from error
    if not text.strip():
        raise MetricsPageError("the metrics page is empty")
    if not text.startswith(("# HELP ", "# TYPE ")) and "\n# TYPE " not in text:
        raise MetricsPageError(f"not a metrics page: starts with {text[:_SHOWN]!r}")
    if len(text) > MOST_LINES and text.count("\n") > MOST_LINES:
        raise MetricsPageError(f"the metrics page has more than {MOST_LINES} lines")
    if not text.endswith("\n"):
        raise MetricsPageError(f"the metrics page is cut: it ends in {text[-_SHOWN:]!r}, without a newline")
    return text


def pick_samples(text: str, wanted: Container[str]) -> dict[str, list[SampleRow]]:
    """The samples of the wanted names, in page order. Raises MetricsPageError."""
    picked: dict[str, list[SampleRow]] = {}
    lines = text.split("\n")
    for number, name, inside, after in find_samples(lines, wanted):
        picked.setdefault(name, []).append((inside, parse_value(after, lines[number])))
    return picked


def find_samples(lines: Iterable[str], wanted: Container[str]) -> Iterator[tuple[int, str, str, str]]:
    """Of each wanted line: its number, the name, the text between the braces, and the rest.

    Raises MetricsPageError.
    """
    left = MOST_SAMPLES
    for number, line in enumerate(lines):
        brace = line.find("{")
        name = line[:brace] if brace > 0 else line.partition(" ")[0]
        if name in wanted:
            left -= 1
            if left < 0:
                raise MetricsPageError(f"the metrics page has more than {MOST_SAMPLES} samples to read")
            if len(line) > LONGEST_SAMPLE:
                raise MetricsPageError(
                    f"a line of the metrics page has {len(line)} characters: {line[:_SHOWN]!r}"
                )
            end = line.rfind("}")
            inside, after = (line[brace + 1 : end], line[end + 1 :]) if brace > 0 else ("", line[len(name) :])
            yield number, name, inside, after


def parse_value(after: str, line: str) -> float:
    """The value in `value [timestamp]`. Raises MetricsPageError."""
    parts = after.split()
    try:
        value = float(parts[0])
        if len(parts) > 1:
            int(parts[1])
    except (ValueError, IndexError) as error:
        raise MetricsPageError(f"a line of the metrics page cannot be read: {line[:_SHOWN]!r}") from error
    return value


def parse_labels(inside: str) -> Mapping[str, str]:
    """Parse the labels between the braces. Raises MetricsPageError."""
    return _remembered_labels(inside) if len(inside) <= _REMEMBERED else _parse_labels(inside)


def parse_bucket(inside: str) -> tuple[float, frozenset[tuple[str, str]]]:
    """The upper edge of a bucket, and the labels of its histogram. Raises MetricsPageError."""
    return _remembered_bucket(inside) if len(inside) <= _REMEMBERED else _parse_bucket(inside)


def _parse_labels(inside: str) -> Mapping[str, str]:
    if not _LABELS.fullmatch(inside):
        raise MetricsPageError(f"labels of the metrics page cannot be read: {inside[:_SHOWN]!r}")
    return MappingProxyType({name: _unescape(value) for name, value in _LABEL.findall(inside)})


def _parse_bucket(inside: str) -> tuple[float, frozenset[tuple[str, str]]]:
    labels = parse_labels(inside)
    try:
        edge = float(labels["le"])
    except (KeyError, ValueError) as error:
        raise MetricsPageError(f"a bucket without a readable `le`: {inside[:_SHOWN]!r}") from error
    return edge, frozenset((name, value) for name, value in labels.items() if name != "le")


_remembered_labels = lru_cache(maxsize=8192)(_parse_labels)  # every scrape has the same few hundred texts
_remembered_bucket = lru_cache(maxsize=8192)(_parse_bucket)


def _unescape(value: str) -> str:
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], value)
