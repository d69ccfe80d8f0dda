"""The counts of requests that a server writes into its log every ten seconds. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

INTERVAL_S = 10.0  # between two counts: default of VLLM_LOG_STATS_INTERVAL
FULL = 95.0  # percent of the KV cache
_LONGEST = 2000  # characters of a line that are read: such a line has some 300
LEAST = 2  # counts that show how many requests run at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Rates are in tokens/s, shares in percent. None: the line does not say it.

    `hits` and `host_hits`: of the tokens of prompts, those in the KV cache of the GPU, and those that a
    connector brought.
    """

    engine: str
    prompts: float
    answers: float
    running: int
    waiting: int
    usage: float | None
    hits: float | None
    host_hits: float | None
    media: bool  # whether requests had images, videos or sounds
    preempted: int

    @property
    def works(self) -> bool:
        return self.prompts > 0 or self.answers > 0


_COUNT = re.compile(
    r"(?:Engine (?P<engine>\d{1,4}): )?Avg prompt throughput: (?P<prompts>\d+(?:\.\d*)?) tokens/s, "
    r"Avg generation throughput: (?P<answers>\d+(?:\.\d*)?) tokens/s, "
    r"Running: (?P<running>\d{1,9}) reqs?, (?:Swapped: \d{1,9} reqs?, )?"
    r"(?:Waiting|Pending): (?P<waiting>\d{1,9}) reqs?"
)
_USAGE = re.compile(r"KV cache usage: (\d{1,3}(?:\.\d*)?)%")
_HITS = re.compile(r"(?<!External )[Pp]refix cache hit rate: (\d{1,3}(?:\.\d*)?)%")
_HOST_HITS = re.compile(r"External prefix cache hit rate: (\d{1,3}(?:\.\d*)?)%")
_PREEMPTED = re.compile(r"Preemptions: (\d{1,9})\b")


def read_counts(log: Sequence[str]) -> tuple[Count, ...]:
    return _read_counts(tuple(log))


@lru_cache(maxsize=2)
def _read_counts(log: tuple[str, ...]) -> tuple[Count, ...]:
    return tuple(count for line in log if (count := _read_count(line[:_LONGEST])))


def _read_count(line: str) -> Count | None:
    match = _COUNT.search(line)
    if match is None:
        return None
    rest = line[match.end() :]
    preempted = _PREEMPTED.search(rest)
    return Count(
        engine=match["engine"] or "",
        prompts=float(match["prompts"]),
        answers=float(match["answers"]),
        running=int(match["running"]),
        waiting=int(match["waiting"]),
        usage=_read_share(_USAGE, rest),
        hits=_read_share(_HITS, rest),
        host_hits=_read_share(_HOST_HITS, rest),
        media="MM cache hit rate" in rest,
        preempted=int(preempted[1]) if preempted else 0,
    )


def _read_share(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return float(match[1]) if match else None


def waits_for_cache(log: Sequence[str]) -> bool:
    """Whether, by the latest count, requests wait for room in a KV cache that is full."""
    last = next(reversed(read_counts(log)), None)
    return last is not None and last.works and last.waiting > 0 and (last.usage or 0.0) >= FULL


def usual_running(log: Sequence[str]) -> int | None:
    """The requests that run while answers are computed: the median of the counts; None if too few say it."""
    running = sorted(count.running for count in read_counts(log) if count.answers > 0 and count.running)
    return running[len(running) // 2] if len(running) >= LEAST else None


def most_at_once(log: Sequence[str]) -> int | None:
    """The most requests that an engine had at a time, also those that wait; None if too few counts say it."""
    busy = [count.running + count.waiting for count in read_counts(log) if count.running]
    return max(busy) if len(busy) >= LEAST else None
