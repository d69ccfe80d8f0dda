"""All checks of vLLM at start: combinations of flags, and of flags, model and GPU, that it refuses."""

from collections.abc import Iterator

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
    for row in (*NOT_ABOVE, *WITHOUT):
        yield from row.problems(config)
    for check in CHECKS:
        yield from check(config)
