"""All checks of vLLM at start: combinations of flags, and of flags, model and GPU, that it refuses."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from flettner.vllm_facts.fact_tables import FOLDER, read_rows
from flettner.vllm_facts.releases import cite
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import json_entry
from flettner.vllm_facts.validity import (
    adapters,
    attention,
    parallel,
    precision,
    quantization,
    scheduler,
    speculation,
    split,
)
from flettner.vllm_facts.validity.refusal import InvalidSetting, NotAbove, RefusedFlag


def has_no_shared_cache(config: ServeConfig) -> bool:
    return config.setting.get("mm_processor_cache_type") != "shm"


def names_backend_twice(config: ServeConfig) -> bool:
    return json_entry(config, "attention_config", "backend") is not None


_FILE = FOLDER / "validity/refusals.toml"
_CONDITIONS = {
    condition.__name__: condition
    for condition in (*parallel.CONDITIONS, has_no_shared_cache, names_backend_twice)
}
NOT_ABOVE = read_rows(_FILE, "not_above", NotAbove)
REFUSED = read_rows(_FILE, "refused", RefusedFlag, _CONDITIONS)
CHECKS = (
    *scheduler.CHECKS,
    *parallel.CHECKS,
    *split.CHECKS,
    *quantization.CHECKS,
    *precision.CHECKS,
    *attention.CHECKS,
    *speculation.CHECKS,
    *adapters.CHECKS,
)


def find_problems(config: ServeConfig) -> Iterator[InvalidSetting]:
    """Everything in the deployment that vLLM would refuse; unknown facts pass.

    What a start with the same flags got past, by its log, is no problem: the log knows the build.
    """
    start = config.start
    passed = start is not None and start.passed_flags
    then = {each.why for each in _check(replace(config, setting=start.setting))} if passed and start else ()
    for problem in _check(config):
        if problem.rule != "V1" or problem.why not in then:
            yield replace(problem, source=cite(problem.source))


def _check(config: ServeConfig) -> Iterator[InvalidSetting]:
    problems = [row.problems(config) for row in NOT_ABOVE]
    problems += [row.problems(config) for row in REFUSED]
    problems += [check(config) for check in CHECKS]
    yield from chain.from_iterable(problems)
