"""All checks of vLLM at start: combinations of flags, and of flags, model and GPU, that it refuses."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from flettner.vllm_facts.releases import cite
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.validity import (
    adapters,
    attention,
    length,
    parallel,
    precision,
    quantization,
    scheduler,
    serving,
    speculation,
    split,
)
from flettner.vllm_facts.validity.refusal import InvalidSetting

NOT_ABOVE = (*scheduler.NOT_ABOVE, *adapters.NOT_ABOVE, *parallel.NOT_ABOVE)
WITHOUT = (*parallel.WITHOUT, *serving.WITHOUT)
CHECKS = (
    *scheduler.CHECKS,
    *length.CHECKS,
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
    checks = (*(row.problems for row in (*NOT_ABOVE, *WITHOUT)), *CHECKS)
    for problem in chain.from_iterable(check(config) for check in checks):
        yield replace(problem, source=cite(problem.source))
