"""Signals that policies read from a reading, and constructors of their proposals. Pure."""

from collections.abc import Mapping
from dataclasses import fields
from sys import float_info
from typing import Any

from flettner.agent.domain.model import Bound, Evidence, Outcome, Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Latency, Reading
from flettner.vllm_facts.values import ChangeClass, Knob, Value, as_number

Measured = tuple[str, float | None, str]
"""Metric, value and unit. A value that is None was not seen and is left out."""


def check_options(policy: Any) -> None:  # noqa: ANN401 - any policy, as a dataclass
    """Raise ValueError naming a numeric option, alone or in a tuple, that is negative or not finite."""
    for option in fields(policy):
        value = getattr(policy, option.name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, (int, float)) and not 0 <= number <= float_info.max:
                raise ValueError(f"{option.name} must be a number from 0, not {number}")


def is_idle(reading: Reading) -> bool:
    return reading.running.high <= 0 and reading.waiting.high <= 0


def has_insufficient_data(reading: Reading, coverage_at_least_ratio: float) -> bool:
    """True if coverage is too low, or the server is idle or hangs."""
    return reading.coverage < coverage_at_least_ratio or is_idle(reading) or reading.stands_still


def has_queue(reading: Reading, at_least: float) -> bool:
    """True if requests wait at every moment, and at least `at_least` in both halves of the window."""
    waiting = reading.waiting
    return waiting.low > 0 and min(waiting.early, waiting.late) >= at_least


def has_preemptions(reading: Reading, per_s: float = 0.0) -> bool:
    rate = reading.preemptions_per_s
    return rate is not None and rate.mean > 0 and rate.mean >= per_s


def is_kv_cache_full(reading: Reading, above: float) -> bool:
    usage = reading.kv_usage
    return usage is not None and min(usage.early, usage.late) > above


def is_kv_cache_free(reading: Reading, below: float) -> bool:
    """True if the cache usage stayed below `below` and no request was preempted; False if unknown."""
    return reading.kv_usage is not None and reading.kv_usage.high < below and not has_preemptions(reading)


def has_long_tail(latency: Latency | None, ratio: float, requests: float) -> bool:
    if latency is None or latency.count < requests or latency.p50 <= 0:
        return False
    return latency.p99 >= ratio * latency.p50


def find_peak_gpu_utilization(reading: Reading) -> float | None:
    """Utilisation of the busiest GPU; None if no driver reports it."""
    return max((gpu.utilization for gpu in reading.gpus if gpu.utilization is not None), default=None)


def ran_out_of_memory(outcome: Outcome) -> bool:
    why = outcome.why.lower()
    return outcome.result in {"failed", "rolled_back"} and ("out of memory" in why or "oom" in why.split())


def first_allowed(bound: Bound, *values: Value) -> tuple[Value, ...]:
    """The first of the values that the bound allows, as a tuple; empty if it allows none."""
    return next(((value,) for value in values if bound.allows(value)), ())


def read_number(setting: Mapping[Knob, Value], knob: Knob) -> float | None:
    """The knob's value if it is given as a number, else None."""
    number = as_number(setting.get(knob))
    return None if number is None else float(number)


def read_environment(context: Context) -> Mapping[str, str]:
    return context.config.env if context.config else {}


def build_evidence(reading: Reading, *numbers: Measured) -> tuple[Evidence, ...]:
    """Evidence over the reading's window: the given measurements, then the load, without duplicates."""
    return tuple(
        Evidence(metric=metric, value=value, unit=unit, window_s=reading.span_s)
        for metric, value, unit in dict.fromkeys((*numbers, *measure_load(reading)))
        if value is not None
    )


def measure_load(reading: Reading) -> tuple[Measured, Measured]:
    return ("waiting", reading.waiting.mean, "requests"), ("running", reading.running.mean, "requests")


def build_note(
    rule: str, reading: Reading, why: str, advice: str, source: str, *numbers: Measured
) -> Proposal:
    """Build advice that changes no flag."""
    return Proposal(
        rule=rule,
        to={},
        why=why,
        expects=advice,
        risks="none: no change",
        source=source,
        evidence=build_evidence(reading, *numbers),
        klass="note",
    )


def build_optimisation(
    rule: str,
    reading: Reading,
    to: Mapping[Knob, Value],
    why: str,
    *numbers: Measured,
    expects: str,
    risks: str,
    source: str,
    klass: ChangeClass = "auto",
    assumed: Mapping[Knob, Value] | None = None,
) -> Proposal:
    """Build a change proposed for its gain, not as a mitigation."""
    return Proposal(
        rule=rule,
        to=to,
        why=why,
        expects=expects,
        risks=risks,
        source=source,
        evidence=build_evidence(reading, *numbers),
        assumed=assumed or {},
        klass=klass,
    )
