"""The number of sequences to run at once, by the need of the arrivals and the allowed gap between tokens."""

from collections.abc import Mapping
from math import ceil, inf, sqrt

from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.step_cost import DECODE_COST
from flettner.policies.shared.causes import Miss, preemptions_per_request
from flettner.policies.shared.sequence_cap import ACTIVE, SEQS, STEP_OCTAVES, SequenceCap, find_peak_demand
from flettner.policies.shared.token_budget import prompt_share
from flettner.vllm_facts.values import Knob, Value

STABLE = 1.1  # late over early half of a queue that does not grow
SEVERE = 0.5  # share of late requests from which tokens may come later if only requests are served
NEARLY_ALL = 0.95  # share of late requests from which hardly any request counts, whatever its TTFT
SERVED = 1.2  # answer tokens of a smaller batch over those that arrive


COSTLY: Mapping[Knob, Value] = {"enforce_eager": True, "enable_prefix_caching": False}
"""Flags that cost time in each step, or for each prompt; how much, only a server without them shows."""


def needed_sequences(reading: Reading) -> float | None:
    """Sequences that run at once where nothing waits; None if unknown or unbounded.

    Preemptions make tokens look dear, so a need that looks unbounded need not be.
    """
    needed = _needed_sequences(reading)
    return None if needed == inf else needed


def _needed_sequences(reading: Reading) -> float | None:
    """By Little's law; None if unknown, unbounded if the arrivals need more than the GPU's time.

    n = arrivals/s x answer tokens x step(n), with step(n) growing by DECODE_COST x token_s for each sequence
    more, and the GPU's time less that of the prompts.
    """
    work = reading.work
    rate, answers, step_s, token_s = (
        work.arrivals_per_s,
        work.answer_tokens,
        work.decode_step_s,
        work.token_s,
    )
    if not rate or not answers or not step_s or not token_s:
        return None if is_thrashing(reading) or not rate or not work.service_s else rate * work.service_s
    free = 1 - rate * (work.prompt_tokens or 0.0) * token_s - DECODE_COST * token_s * rate * answers
    return rate * answers * _fixed_s(reading) / free if free > 0 else inf


def _fixed_s(reading: Reading) -> float:
    """The part of a step that does not grow with the batch; at least half of it."""
    step_s, token_s = reading.work.decode_step_s or 0.0, reading.work.token_s or 0.0
    return max(step_s / 2, step_s - DECODE_COST * token_s * reading.running.mean)


def is_thrashing(reading: Reading) -> bool:
    """True if the mean request is preempted: its time in the engine does not predict a smaller batch."""
    each = preemptions_per_request(reading)
    return each is not None and each >= 1


def is_severe(misses: tuple[Miss, ...]) -> bool:
    return any(miss.late > SEVERE for miss in misses)


def wanted_sequences(reading: Reading, context: Context, cap: SequenceCap, misses: tuple[Miss, ...]) -> int:
    """Sequences to admit at once: what the arrivals need, with reserve for their chance peaks.

    Where few requests show that, or the cost of a request is not measured, the peak of running and waiting
    ones. Where most are late, the longest step that the tokens permit, unless durations are promised: one
    window shows few of the bursts to come, and a cap above the demand costs little.
    """
    if not misses:
        return find_peak_demand(reading)
    wanted = _wanted_by_arrivals(reading, cap)
    if is_severe(misses) and context.slo.e2e is None:
        most = most_sequences_in_time(reading, context)
        doublings = [cap.in_all << octave for octave in range(1, STEP_OCTAVES + 1)]
        return max(wanted, *(value for value in doublings if value <= most), 0)
    return wanted


def _wanted_by_arrivals(reading: Reading, cap: SequenceCap) -> int:
    """Sequences that the arrivals need, with reserve for chance peaks; at least a doubling."""
    needed = needed_sequences(reading)
    if needed is None:
        return find_peak_demand(reading)
    wanted = max(2 * cap.in_all, ceil(1.25 * needed + 3 * sqrt(needed)))
    waiting = reading.waiting
    if waiting.low > 0 and waiting.late <= STABLE * waiting.early:
        return max(wanted, find_peak_demand(reading))  # closed loop: all clients are present
    return wanted


def find_held_sequences(reading: Reading) -> float:
    """Sequences that fill the KV cache, at the length of those that ran; unbounded if it was empty."""
    usage = reading.kv_usage
    return reading.running.mean / usage.mean if usage and usage.mean > 0 else inf


def can_serve_with(reading: Reading, sequences: float) -> bool:
    """True unless `sequences` at once answer fewer tokens than arrive, with a margin.

    Half of a step's duration is taken as fixed, as in `needed_sequences`. Preempted requests run longer, so
    the time in the engine is not asked.
    """
    work, running = reading.work, reading.running.mean
    if not work.arrivals_per_s or not work.answer_tokens or not work.decode_step_s or running <= 0:
        return True
    step_s = work.decode_step_s * (1 + sequences / running) / 2
    return sequences / step_s >= SERVED * work.arrivals_per_s * work.answer_tokens


def most_sequences_in_time(reading: Reading, context: Context, *, safely: float = 1.0) -> float:
    """Sequences with which the tokens still come in time; unbounded where that is not known.

    `safely`: the share of the objective that a step may take.
    """
    objective, work = context.slo.itl, reading.work
    if objective is None or work.decode_step_s is None or not work.token_s:
        return inf
    free_s = safely * objective.under_s * max(0.0, 1 - prompt_share(reading)) - work.decode_step_s
    return max(1.0, reading.running.mean + free_s / (DECODE_COST * work.token_s))


def can_decode_in_time(reading: Reading, context: Context) -> bool:
    """False if tokens come late even without prompts, once the sequences run that the arrivals need."""
    needed = _needed_sequences(reading)
    return needed is None or needed <= most_sequences_in_time(reading, context)


def are_tokens_late_anyway(reading: Reading, context: Context) -> bool:
    """True if nearly all requests miss the objective of ITL, and would with any number of sequences.

    The part of a step that does not grow with the batch already takes longer than the objective. Not where
    another flag makes steps long.
    """
    objective, itl = context.slo.itl, reading.itl
    if (
        objective is None
        or itl is None
        or can_lift_costly_flag(context)
        or (itl.over_slo or 0.0) < NEARLY_ALL
    ):
        return False
    return _fixed_s(reading) > max(0.0, 1 - prompt_share(reading)) * objective.under_s


def gain_of_cap(reading: Reading, context: Context, sequences: float) -> float:
    """Throughput with `sequences` at once over the throughput with the sequences that ran.

    A request takes its prompt's time, and for each answer token its part of a step. Unbounded if unknown, as
    where another flag costs time too: without it the step, or the prompt, would be shorter.
    """
    if can_lift_costly_flag(context):
        return inf
    work, running = reading.work, reading.running.mean
    if not work.prompt_tokens or not work.answer_tokens or not work.decode_step_s or not work.token_s:
        return inf
    if running <= 0:
        return inf
    prompt_s, step_s = work.prompt_tokens * work.token_s, work.decode_step_s
    longer_s = step_s + (step_s - _fixed_s(reading)) * (sequences / running - 1)
    now_s, then_s = (
        prompt_s + work.answer_tokens * each for each in (step_s / running, longer_s / sequences)
    )
    return now_s / then_s


def can_lift_costly_flag(context: Context) -> bool:
    """True if one of COSTLY is set, may be lifted, and was not yet lifted together with the cap."""
    return any(
        context.setting.get(knob) is value
        and any(map(context.bound(knob).allows, (None, not value)))
        and not any(knob in outcome.to and outcome.to.keys() & {SEQS, ACTIVE} for outcome in context.outcomes)
        for knob, value in COSTLY.items()
    )
