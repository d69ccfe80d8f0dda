"""The causes of late requests and the effect of a remedy, by the attributed time and the engine's state."""

from dataclasses import dataclass
from typing import Literal

from flettner.agent.domain.lateness import is_measured, late_share, misses_objective
from flettner.agent.domain.model import Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Latency, Reading, TimeShares
from flettner.agent.domain.step_cost import DECODE_COST, RIDGE
from flettner.policies.shared.flags_in_force import find_step_budget
from flettner.policies.shared.sequence_cap import find_cap
from flettner.policies.shared.signals import Measured, read_number

QueueCause = Literal["cap", "kv", "budget", "other", "unknown"]
"""The limit of vLLM's scheduler that kept requests waiting."""

CAP_REACHED = 0.9  # running over the cap while requests waited
CAP_REACHED_TOO = 0.75  # the same with a filled budget: a step that is full of prompts admits no request
KV_SHORT = 0.95  # usage, with room for one more prompt, while requests waited
BUDGET_FILLED = 0.6  # mean tokens of a step over its budget
OVERLOAD = 1.1  # share of the GPU's time that the arrivals need; above, no flag helps
MOST_COST = 0.5  # share of the time that a remedy must address


@dataclass(frozen=True, slots=True)
class Miss:
    """A missed objective for the time to the first token or of the full request."""

    name: str
    latency: Latency
    shares: TimeShares | None

    @property
    def late(self) -> float:
        return late_share(self.latency)


def find_misses(reading: Reading, slo: Slo, requests: float) -> tuple[Miss, ...]:
    """The missed objectives that a queue can explain."""
    objectives = (
        ("TTFT", reading.ttft, slo.ttft, reading.ttft_shares),
        ("the duration", reading.e2e, slo.e2e, reading.e2e_shares),
    )
    return tuple(
        Miss(name, latency, shares)
        for name, latency, objective, shares in objectives
        if latency is not None and misses_objective(latency, objective, requests)
    )


def is_time_measured(reading: Reading, slo: Slo, requests: float) -> bool:
    """True if enough requests show whether first tokens and answers come in time."""
    return is_measured(reading.ttft, slo.ttft, requests) or is_measured(reading.e2e, slo.e2e, requests)


def find_queue_cause(reading: Reading, context: Context) -> QueueCause:
    """The limit that was reached while requests waited, in the order in which vLLM admits a request.

    Where the cap and the budget bind in turn, the answer is the cap: Q1 raises both.
    """
    queue = reading.queue
    if queue is None:
        return "unknown"
    cap, filled = find_cap(reading, context), is_budget_filled(reading, context)
    reached = CAP_REACHED_TOO if filled else CAP_REACHED
    if cap is not None and queue.running >= reached * cap.in_all:
        return "cap"
    if queue.kv_usage is None:
        return "unknown"
    reserve = min(1.0, read_number(context.setting, "watermark") or 0.0)
    size, prompt = reading.kv_cache_tokens, reading.work.prompt_tokens
    room = prompt / size if size and prompt else 0.0
    if queue.kv_usage + room >= KV_SHORT * (1 - reserve):
        return "kv"
    if filled:
        return "budget"
    # The slot of a request that ended is free until the next step: with a small cap, for much of the time.
    return "cap" if cap is not None and queue.running >= cap.in_all - cap.engines else "other"


def is_budget_filled(reading: Reading, context: Context) -> bool:
    """True if the mean step has most of the tokens that its budget allows."""
    tokens = reading.work.step_tokens
    return tokens is not None and tokens >= BUDGET_FILLED * find_step_budget(context.setting, reading)[1]


def find_load(reading: Reading, context: Context) -> float | None:
    """The share of the GPU's time that the arrivals need in large batches; above 1 no flag serves them.

    arrivals/s x (prompt tokens + DECODE_COST x answer tokens) x seconds per token. With a small token budget
    the fixed part of a step is spread over fewer tokens, so the measured seconds per token are scaled.
    """
    work = reading.work
    if not work.arrivals_per_s or not work.token_s or not work.prompt_tokens or not work.answer_tokens:
        return None
    token_s = work.token_s
    budget = find_step_budget(context.setting, reading)[1]
    if budget < work.prompt_tokens:
        token_s *= budget / (budget + RIDGE)
    return work.arrivals_per_s * token_s * (work.prompt_tokens + DECODE_COST * work.answer_tokens)


def is_overloaded(reading: Reading, context: Context) -> bool:
    load = find_load(reading, context)
    return load is not None and load > OVERLOAD


def recomputed_share(reading: Reading) -> float | None:
    """The share of the engine's time that goes into computing preempted requests again; None if unknown."""
    rate, usage, work = reading.preemptions_per_s, reading.kv_usage, reading.work
    size = reading.kv_cache_tokens
    if rate is None or rate.mean <= 0:
        return 0.0
    if work.prompt_tokens is None or work.token_s is None:
        return None
    tokens = work.prompt_tokens + (work.answer_tokens or 0.0) / 2
    if size and usage is not None and reading.running.mean > 0:
        tokens = usage.mean * size / reading.running.mean
    return rate.mean * tokens * work.token_s


def preemptions_per_request(reading: Reading) -> float | None:
    """Preemptions for each request that arrives."""
    rate, arriving = reading.preemptions_per_s, reading.work.arrivals_per_s
    return rate.mean / arriving if rate is not None and arriving else None


def describe_shares(misses: tuple[Miss, ...]) -> list[Measured]:
    """The attributed shares as evidence."""
    return [
        (f"{'ttft' if miss.name == 'TTFT' else 'e2e'}_{part}_share", getattr(miss.shares, part), "ratio")
        for miss in misses
        if miss.shares is not None
        for part in ("queue", "prefill", "decode", "outside")
        if getattr(miss.shares, part) > 0
    ]
