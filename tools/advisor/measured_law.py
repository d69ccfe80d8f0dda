"""The law of step time and the size of the KV cache, from a server's log."""

import re
from collections.abc import Sequence
from math import hypot, sqrt
from statistics import fmean

from flettner.performance_model.engine_settings import limits_of
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.fit import expected_s
from flettner.performance_model.hardware_prior import fit_with_prior, rows_of_log
from flettner.performance_model.iteration_log import parse_iterations
from flettner.performance_model.log_clock import MOST_OF_ALL, busy_spans
from flettner.performance_model.step_law import StepLaw, UncertainLaw, with_error
from flettner.performance_model.trace import Trace, mean_context
from flettner.performance_model.work_windows import WorkWindow, windows_of_steps
from flettner.vllm_facts.serve_config import ServeConfig

SERVER_ERROR = 0.1
"""Relative, of a token in a server by the log of another with the same model and GPU: it took 11 % longer in
the blue of a rollout than in the server of a sweep on an H100, 12 % on an H200, and 7 % in its green."""
_KV_SIZE = re.compile(r"KV cache size: ([\d,]{1,20}) tokens")


def find_kv_tokens(log: Sequence[str]) -> int | None:
    """Return the size of the KV cache at the last start in the log; None if it is not logged."""
    sizes = [match[1] for line in log if (match := _KV_SIZE.search(line[:4000]))]
    return int(sizes[-1].replace(",", "")) if sizes else None


def _is_on_gpu(config: ServeConfig) -> bool:
    """Whether it runs on one, if of an unknown kind: vLLM for CPUs does not plan ahead."""
    return config.card is not None or any("scheduling is enabled" in line[:4000] for line in config.log)


def law_of_log(
    config: ServeConfig, log: Sequence[str], kv_tokens: int | None, trace: Trace
) -> UncertainLaw | None:
    """Fit the law; None without iteration lines. Raises PredictionInputError if they do not suffice.

    `trace`: tells how much of the KV cache a sequence reads, where the log does not.
    """
    records, capacity = list(parse_iterations(log)), limits_of(config, kv_tokens=kv_tokens).kv_tokens
    windows = list(windows_of_steps(records, capacity))
    if not windows:
        return None
    spans = list(busy_spans(records, capacity))
    rows, kind = rows_of_log(config, windows, spans, mean_context(trace), on_gpu=_is_on_gpu(config))
    if not rows:
        raise PredictionInputError(
            "the log shows too little: with asynchronous scheduling its elapsed times tell nothing of a "
            "step, and its clock only where steps follow each other for seconds; record steady traffic for "
            "longer"
        )
    unit = "windows of steps in the log" if kind == "steps" else "spans of the log's clock"
    law = fit_with_prior(config, rows, kind=kind, source=f"{len(rows)} {unit}")
    unexplained = _unexplained(law.law, rows) if kind == "clock" else 0.0
    return with_error(law, (hypot(SERVER_ERROR, unexplained),))


def _unexplained(law: StepLaw, rows: Sequence[WorkWindow]) -> float:
    """Root mean square, relative: what differs from second to second in spite of the same work, such as other
    processes on the host. Of one row, what its time is known to."""
    if len(rows) == 1:
        return MOST_OF_ALL
    return sqrt(fmean((expected_s(law, row) / row.seconds - 1) ** 2 for row in rows))
