"""The law of step time and the size of the KV cache, from a server's log."""

import re
from collections.abc import Sequence
from dataclasses import replace

from performance_model.engine_settings import limits_of
from performance_model.errors import PredictionInputError
from performance_model.fit import fit_law
from performance_model.hardware_prior import prior_law
from performance_model.iteration_log import parse_iterations, unlogged_s
from performance_model.step_law import UncertainLaw
from performance_model.work_windows import windows_of_steps
from vllm_facts.deployment import Deployment

_KV_SIZE = re.compile(r"KV cache size: ([\d,]{1,20}) tokens")


def find_kv_tokens(log: Sequence[str]) -> int | None:
    """Return the size of the KV cache at the last start in the log; None if it is not logged."""
    found = [match[1] for line in log if (match := _KV_SIZE.search(line[:4000]))]
    return int(found[-1].replace(",", "")) if found else None


def law_of_log(case: Deployment, log: Sequence[str], kv_tokens: int | None) -> UncertainLaw | None:
    """Fit the law; None without iteration lines. Raises PredictionInputError if they do not suffice."""
    records = list(parse_iterations(log))
    missing_s = unlogged_s(records)
    steps = (replace(record, seconds=record.seconds + missing_s) for record in records)
    windows = list(windows_of_steps(steps, limits_of(case, kv_tokens=kv_tokens).kv_tokens))
    if not windows:
        return None
    source = f"{len(windows)} windows of steps in the log"
    return fit_law(windows, attention_us=attention_of(case), source=source)


def attention_of(case: Deployment) -> float:
    """Return the prior's cost of attention, for windows that do not show it; 0 for an unknown GPU."""
    try:
        return prior_law(case).law.attention_us
    except PredictionInputError:
        return 0.0
