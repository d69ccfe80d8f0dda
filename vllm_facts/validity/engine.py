"""All checks of vLLM at start: combinations of flags, and of flags, model and GPU, that it refuses."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from flettner.vllm_facts.fact_tables import FOLDER, read_rows
from flettner.vllm_facts.releases import cite
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.validity import (
    adapters,
    attention,
    parallel,
    precision,
    quantization,
    scheduler,
    serving,
    speculation,
    split,
)
from flettner.vllm_facts.validity.refusal import InvalidSetting, NotAbove, RefusedFlag

_FILE = FOLDER / "validity/refusals.toml"
_CONDITIONS = {check.__name__: check for check in (*parallel.CONDITIONS, *serving.CONDITIONS)}
NOT_ABOVE = read_rows(_FILE, "not_above", NotAbove)
REFUSED = read_rows(_FILE, "refused", RefusedFlag, _CONDITIONS)
CHECKS = (
    *scheduler.CHECKS,
    *parallel.CHECKS,
    *split.CHECKS,
    *quantization.CHECKS,
    *precision.CHECKS,
    *attention.CHECKS,
    *serving.CHECKS,
    *speculation.CHECKS,
    *adapters.CHECKS,
)


def find_problems(config: ServeConfig) -> Iterator[InvalidSetting]:
    """Everything in the deployment that vLLM would refuse; unknown facts pass."""
    problems = [row.problems(config) for row in NOT_ABOVE]
    problems += [row.problems(config) for row in REFUSED]
    problems += [check(config) for check in CHECKS]
    for problem in chain.from_iterable(problems):
        yield replace(problem, source=cite(problem.source))
