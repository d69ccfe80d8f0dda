"""Report queues that no knob can fix: a critical backlog, a stall, a lack of replicas."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from flettner.agent.domain.lateness import misses_objective
from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.flags_in_force import find_max_num_seqs, find_token_budget
from flettner.policies.shared.gpu_share import SHARE, find_memory_share
from flettner.policies.shared.overload import can_end_queue, empties_by_itself
from flettner.policies.shared.sequence_cap import (
    ACTIVE,
    SEQS,
    SequenceCap,
    count_engines,
    find_cap,
    raise_cap,
)
from flettner.policies.shared.sequence_demand import gain_of_cap
from flettner.policies.shared.signals import (
    Measured,
    build_note,
    check_options,
    has_preemptions,
    has_queue,
    is_idle,
    is_kv_cache_free,
    is_kv_cache_full,
    read_number,
)
from flettner.policies.shared.step_grid import step_up, was_reversed_recently
from flettner.vllm_facts.references import METRICS, OPTIMIZATION
from flettner.vllm_facts.values import Setting

BUDGET, SCHEDULED = "max_num_batched_tokens", "max_num_scheduled_tokens"
SOURCE = f"{METRICS}; {OPTIMIZATION}"
PREFILL_RATIO = 10  # prompt tokens over answer tokens: most of the work is prefill
FEW_TOKENS = 1024  # of a step: they admit few prompts
BLOCKERS = {
    "speculative_config": "speculative decoding",
    "kv_transfer_config": "a KV connector that requests wait for",
    "structured_outputs_config": "grammars of structured output that are still compiled",
    "limit_mm_per_prompt": "multimodal inputs and their encoder budget",
    "max_loras": "adapters that wait for a LoRA slot",
    "scheduling_policy": "a scheduling policy other than first come, first served",
    SCHEDULED: "a cap on the tokens of a step",
    "long_prefill_token_threshold": "a cap on the chunks of long prompts",
}
"""Flags whose feature may keep requests in the queue while there is capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNotes:
    """Rules Q3, Q4 and N1. They change nothing."""

    backlog_above: float = 100.0  # Q3: requests that wait, in both halves of the window
    queue_at_least: float = 1.0  # Q4 and N1: the same
    stalled_below_ratio: float = 0.75  # Q4: highest running over the cap
    kv_free_below_ratio: float = 0.6  # highest KV usage of the window
    kv_full_above_ratio: float = 0.9  # in both halves of the window
    memory_ceiling_ratio: float = 0.92  # N1: gpu_memory_utilization that counts as its bound
    requests_at_least: int = 20  # N1: behind the latency that misses its objective
    coverage_at_least_ratio: float = 0.8
    settle_s: float = 600.0  # N1: time for a promotion to take effect

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        if is_idle(reading) or reading.coverage < self.coverage_at_least_ratio:
            return ()
        notes = [self._note_backlog(reading), self._note_stall(reading, context)]
        if not reading.stands_still:  # replicas do not help what hangs
            notes.append(self._note_capacity(reading, context))
        return tuple(note for note in notes if note)

    def _note_backlog(self, reading: Reading) -> Proposal | None:
        waiting = reading.waiting
        if min(waiting.early, waiting.late) <= self.backlog_above:
            return None
        why = (
            f"critical backlog: over {reading.span_s:.0f} s {waiting.mean:.0f} requests waited "
            f"(more than {self.backlog_above:g}), at most {waiting.high:.0f}"
        )
        advice = "shed or spread load until the backlog is gone; Q1, Q2 or Q4 name its cause"
        return build_note("Q3", reading, why, advice, SOURCE, _kv(reading))

    def _note_stall(self, reading: Reading, context: Context) -> Proposal | None:
        if not has_queue(reading, self.queue_at_least):
            return None
        cap = find_cap(reading, context) or _default_cap(reading, context)
        if not is_kv_cache_free(reading, self.kv_free_below_ratio):
            return None
        if reading.running.high >= self.stalled_below_ratio * cap.in_all:
            return None
        why = (
            f"over {reading.span_s:.0f} s {reading.waiting.mean:.1f} requests waited while at most "
            f"{reading.running.high:.0f} ran ({cap.origin}) and the KV cache was free"
        )
        causes = [*_describe_prefill(reading), *_list_blockers(context.setting)]
        blockers = "; ".join(causes) or "structured output, multimodal inputs, adapters"
        advice = f"neither the cap nor the KV cache is the limit; check: {blockers}"
        return build_note("Q4", reading, why, advice, SOURCE, _kv(reading))

    def _note_capacity(self, reading: Reading, context: Context) -> Proposal | None:
        slo, least = context.slo, self.requests_at_least
        missed = [
            (name, latency.over_slo or 0.0)
            for name, latency, promise in (
                ("TTFT", reading.ttft, slo.ttft),
                ("ITL", reading.itl, slo.itl),
                ("end-to-end time", reading.e2e, slo.e2e),
            )
            if latency and misses_objective(latency, promise, least)
        ]
        running, waiting = reading.running.mean, reading.waiting.mean
        if not missed or running <= 0 or not has_queue(reading, self.queue_at_least):
            return None
        if empties_by_itself(reading) or not self._is_exhausted(reading, context):
            return None
        name, late = missed[0]
        more = ceil(waiting / running)
        why = (
            f"over {reading.span_s:.0f} s {late:.1%} of the requests missed their {name}, {running:.1f} ran "
            f"and {waiting:.1f} waited, and every knob that could help is at its bound: "
            f"{waiting:.1f} waiting / {running:.1f} running on one server make {more} more"
        )
        advice = f"capacity: {more} more replica(s) like this one"
        return build_note("N1", reading, why, advice, SOURCE, _kv(reading), ("late", late, "ratio"))

    def _is_exhausted(self, reading: Reading, context: Context) -> bool:
        """True if no knob that admits more can move.

        A full cache needs a larger memory share; otherwise the cap and the token budget count.
        """
        knobs = (SEQS, ACTIVE, BUDGET, SCHEDULED, SHARE)
        if was_reversed_recently(
            reading, context, knobs, upwards=True, settle_s=self.settle_s
        ) or was_reversed_recently(reading, context, knobs, upwards=False, settle_s=self.settle_s):
            return False
        if is_kv_cache_full(reading, self.kv_full_above_ratio) or has_preemptions(reading):
            return self._is_memory_at_bound(reading, context)
        cap, budget = find_cap(reading, context), find_token_budget(context.setting, reading)
        if cap is None or not is_kv_cache_free(reading, self.kv_full_above_ratio):
            return False
        if reading.running.high < self.stalled_below_ratio * cap.in_all:
            return False
        caps = raise_cap(reading, context, cap, kv_target=1.0)
        if caps and can_end_queue(
            reading, gain=gain_of_cap(reading, context, min(caps.values()) * cap.engines)
        ):
            return False
        if not is_kv_cache_free(reading, self.kv_free_below_ratio):  # a larger value admits more requests
            return self._is_memory_at_bound(reading, context)
        higher = step_up(context.bound(BUDGET), current=budget, wanted=budget * 2, limit=budget * 2)
        return higher is None or not _is_prefilling(reading)

    def _is_memory_at_bound(self, reading: Reading, context: Context) -> bool:
        share, bound = find_memory_share(reading, context), context.bound(SHARE)
        if share is None:
            return False
        return share >= self.memory_ceiling_ratio or not bound.allows(share + 0.01)


def _default_cap(reading: Reading, context: Context) -> SequenceCap:
    value = find_max_num_seqs(context.setting, reading)
    origin = f"{SEQS} is not given, vLLM's own is {value} or more"
    return SequenceCap(knob=SEQS, value=value, origin=origin, engines=count_engines(context.setting, reading))


def _describe_prefill(reading: Reading) -> list[str]:
    """Prompts that take most of the computation, and so hold up the queue."""
    prompts, answers = reading.prompt_tokens_per_s, reading.generation_tokens_per_s
    if prompts is None or answers is None or not _is_prefilling(reading):
        return []
    rates = f"{prompts.mean:.0f} tokens/s of prompts, {answers.mean:.0f} of answers"
    return [f"prompts ({rates}: prefill is the limit, so prefix caching, a larger token budget, or replicas)"]


def _is_prefilling(reading: Reading) -> bool:
    """True if most of the work is, or may be, prefill."""
    prompts, answers = reading.prompt_tokens_per_s, reading.generation_tokens_per_s
    return prompts is None or answers is None or prompts.mean >= PREFILL_RATIO * answers.mean


def _list_blockers(setting: Setting) -> list[str]:
    flags = [
        f"{knob} ({meaning})"
        for knob, meaning in BLOCKERS.items()
        if setting.get(knob) not in {None, False, "fcfs"}
    ]
    if setting.get("async_scheduling") is False:
        flags.append("async_scheduling (it is off)")
    if setting.get("enable_chunked_prefill") is False:
        flags.append("enable_chunked_prefill (it is off: a prompt waits until all of it fits a step)")
    budget = read_number(setting, BUDGET)
    if budget is not None and budget < FEW_TOKENS:
        flags.append(f"{BUDGET} ({budget:g} tokens a step admit few prompts)")
    return flags


def _kv(reading: Reading) -> Measured:
    return "kv_usage_high", reading.kv_usage.high if reading.kv_usage else None, "ratio"


plugin = QueueNotes
