"""The law of step time and the size of the KV cache, from a server's log."""

import re
from collections.abc import Sequence

from flettner.performance_model.engine_settings import limits_of
from flettner.performance_model.hardware_prior import fit_with_prior
from flettner.performance_model.iteration_log import parse_iterations
from flettner.performance_model.log_clock import add_unlogged, busy_spans, unlogged
from flettner.performance_model.step_law import UncertainLaw
from flettner.performance_model.work_windows import windows_of_steps
from flettner.vllm_facts.serve_config import ServeConfig

_KV_SIZE = re.compile(r"KV cache size: ([\d,]{1,20}) tokens")


def find_kv_tokens(log: Sequence[str]) -> int | None:
    """Return the size of the KV cache at the last start in the log; None if it is not logged."""
    sizes = [match[1] for line in log if (match := _KV_SIZE.search(line[:4000]))]
    return int(sizes[-1].replace(",", "")) if sizes else None


def law_of_log(config: ServeConfig, log: Sequence[str], kv_tokens: int | None) -> UncertainLaw | None:
    """Fit the law; None without iteration lines. Raises PredictionInputError if they do not suffice."""
    records = list(parse_iterations(log))
    windows = list(windows_of_steps(records, limits_of(config, kv_tokens=kv_tokens).kv_tokens))
    if not windows:
        return None
    source = f"{len(windows)} windows of steps in the log"
    windows = add_unlogged(windows, unlogged(busy_spans(records)))
    return fit_with_prior(config, windows, is_logged=True, source=source)
