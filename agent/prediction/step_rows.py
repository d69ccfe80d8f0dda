"""The rows of a law of step time: windows of steps from scrapes of /metrics, or from the iteration log."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from flettner.agent.domain.reading import EngineSample, count_replicas
from flettner.performance_model.iteration_log import parse_iterations
from flettner.performance_model.log_clock import BusySpan, busy_spans
from flettner.performance_model.work_windows import WorkWindow, window_of_counts, windows_of_steps
from flettner.vllm_facts.metrics.page_totals import HistogramTotals

MOST_SECONDS = 3.0  # between two scrapes; in more the engine may have idled
BUSY_REQUESTS = 4.0  # of each replica and engine: fewer may all be at one of them
MOST_ROWS = 15  # of one read of the log: 60 a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSteps:
    """New steps of one read of a server's log. `last`: the number of the latest, to know new ones by."""

    rows: bytes  # pickled windows
    busy: tuple[BusySpan, ...]
    last: int


def kv_tokens_of(facts: Mapping[str, str], engines: int = 1) -> int | None:
    """The size of the KV cache of one of a server's engines, by vllm:cache_config_info.

    Its blocks are those of all engines (v1/engine/core_client.py: "Sum num_gpu_blocks from all engines").
    """
    try:
        return int(facts["num_gpu_blocks"]) * int(facts["block_size"]) // engines
    except (KeyError, ValueError):
        return None


def row_of_scrape(
    before: EngineSample, after: EngineSample, budget: float | None, engines: int = 1
) -> WorkWindow | None:
    """The steps between two scrapes; None if an engine may have idled.

    `budget`: max_num_batched_tokens. `engines`: of each replica.
    """
    capacity = kv_tokens_of(after.facts, engines)
    engines *= count_replicas(after.facts)
    least = 1.0 if engines == 1 else BUSY_REQUESTS * engines
    steps = after.steps
    if steps is None or not steps.total or capacity is None:
        return None
    if not 0 < after.interval_s <= MOST_SECONDS or min(before.running, after.running) < least:
        return None
    ended = [histogram.total for histogram in (after.prompts, after.answers) if histogram is not None]
    usage = ((before.kv_usage or 0.0) + (after.kv_usage or 0.0)) / 2
    return window_of_counts(
        HistogramTotals((*steps.edges, inf), steps.counts, steps.sum),
        seconds=after.interval_s * engines,
        sequences=after.generation_tokens + max(ended, default=0.0),
        kv_tokens=usage * capacity,
        budget=budget or inf,
    )


def read_steps(lines: Sequence[str], last: int, kv_tokens: int) -> LoggedSteps:
    """The steps after number `last`; all if that one is not in the lines. Of several engines the first."""
    records = list(parse_iterations(lines))
    engine = min((record.engine for record in records), default=0)
    records = [record for record in records if record.engine == engine]
    place = next((at for at in reversed(range(len(records))) if records[at].index == last), -1)
    new = records[place + 1 :]
    return LoggedSteps(
        rows=pickle.dumps(thin(list(windows_of_steps(new, kv_tokens)), MOST_ROWS)),
        busy=tuple(busy_spans(new, kv_tokens)),
        last=new[-1].index if new else last,
    )


def thin(rows: Sequence[WorkWindow], most: int) -> list[WorkWindow]:
    """At most `most`, evenly spaced, half of them with prompts where there are so many."""
    with_prompts = [row for row in rows if row.attention]
    without = [row for row in rows if not row.attention]
    count = max(most - len(without), min(len(with_prompts), most // 2))
    return [*_spread(with_prompts, count), *_spread(without, most - min(count, len(with_prompts)))]


def _spread(rows: Sequence[WorkWindow], most: int) -> Sequence[WorkWindow]:
    return rows if len(rows) <= most else [rows[at * len(rows) // most] for at in range(most)]
