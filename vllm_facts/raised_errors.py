"""The errors that releases of vLLM raise by themselves, and how to find them in a line of a log.

`scripts/vllm_errors.py` writes the table from vLLM's sources. It holds no text of a message: each constant
part of a message is a run of words, known by their number and a hash. A line has the message if it has all
of its runs, in their order.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, TypeAlias

from flettner.vllm_facts.values import Knob

TABLE = Path(__file__).parent / "releases/errors.tsv"
GAP = "\u00a7"
"""Stands for a value in the template of a message."""

Release: TypeAlias = tuple[int, int]


Run: TypeAlias = tuple[int, str]
"""Consecutive words: how many, and their hash."""

_WORD = re.compile(r"[A-Za-z]+")
_HASH_BYTES = 5  # a line has some 2,000 runs; in 10^5 lines, one line has a run of a message by chance


class RaisedError(NamedTuple):
    """One message. `runs`: of its constant parts, in their order. `weight`: the number of their words."""

    first: Release  # of the releases looked at
    last: Release
    file: str
    flags: tuple[Knob, ...]  # that the message or its condition names
    runs: tuple[Run, ...]
    weight: int


class _Line:
    """The words of a line, to look up runs in it."""

    def __init__(self, text: str) -> None:
        self._words = split_words(text)
        self._places: dict[int, dict[str, list[int]]] = {}  # by the length of a run, then by its hash

    def has(self, runs: Iterable[Run]) -> bool:
        """True if the line has all runs, in their order."""
        place = 0
        for length, digest in runs:
            places = self._of_length(length).get(digest, ())
            start = next((at for at in places if at >= place), None)
            if start is None:
                return False
            place = start + length
        return True

    def _of_length(self, length: int) -> dict[str, list[int]]:
        if length not in self._places:
            places = self._places[length] = {}
            for at in range(len(self._words) - length + 1):
                places.setdefault(hash_words(self._words[at : at + length]), []).append(at)
        return self._places[length]


def split_words(text: str) -> list[str]:
    """The words of a message, in lower case."""
    return [word.lower() for word in _WORD.findall(text)]


def hash_words(words: Sequence[str]) -> str:
    """The hash of a run."""
    return blake2b(" ".join(words).encode(), digest_size=_HASH_BYTES).hexdigest()


def format_release(release: Release) -> str:
    return f"{release[0]}.{release[1]}"


def find_raised(text: str) -> RaisedError | None:
    """The message of vLLM in the text; of several messages, that with the most constant words."""
    line = _Line(text.replace("\\n", " "))
    rows, _ = _table()
    fits = [row for row in rows if line.has(row.runs)]
    return max(fits, key=lambda row: (row.weight, row.last), default=None)


def next_release(release: Release) -> Release | None:
    """The next of the releases whose sources were read."""
    return min((later for later in _table()[1] if later > release), default=None)


@lru_cache(maxsize=1)
def _table() -> tuple[tuple[RaisedError, ...], tuple[Release, ...]]:
    head, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    return tuple(_rows(lines)), tuple(map(_release, head.removeprefix("# ").split()))


def _rows(lines: Iterable[str]) -> Iterator[RaisedError]:
    """The rows below their files: a line without a tab is the file of those that follow."""
    file = ""
    for line in lines:
        first, *rest = line.split("\t")
        if not rest:
            file = first
            continue
        last, flags, written_runs = rest
        runs = tuple(_run(run) for run in written_runs.split())
        yield RaisedError(
            first=_release(first),
            last=_release(last),
            file=file,
            flags=tuple(flags.split(",")) if flags else (),
            runs=runs,
            weight=sum(length for length, _ in runs),
        )


def _run(text: str) -> Run:
    length, _, digest = text.partition(":")
    return int(length), digest


def _release(text: str) -> Release:
    major, minor = text.split(".")
    return int(major), int(minor)
