"""Size vLLM's share of GPU memory: raise it while the KV cache is the bottleneck, lower it after an OOM."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flettner.agent.domain.lateness import has_need
from flettner.agent.domain.model import Evidence, Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.causes import (
    find_misses,
    find_queue_cause,
    is_overloaded,
    is_time_measured,
    recomputed_share,
)
from flettner.policies.shared.gpu_share import SHARE, find_memory_share, find_used_share
from flettner.policies.shared.sequence_cap import find_cap, find_peak_running, lower_cap
from flettner.policies.shared.signals import (
    Measured,
    build_evidence,
    check_options,
    has_preemptions,
    is_idle,
    is_kv_cache_full,
    ran_out_of_memory,
)
from flettner.policies.shared.step_grid import step_down, was_reversed_recently
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.references import OPTIMIZATION
from flettner.vllm_facts.releases import cite
from flettner.vllm_facts.values import Knob, Value

BLOCKS, BYTES, LENGTH = "num_gpu_blocks_override", "kv_cache_memory_bytes", "max_model_len"
_Change = tuple[dict[Knob, Value], dict[Knob, Value]]
"""The value to set, and the present value."""

SOURCE = cite(f"{OPTIMIZATION} (preemption); vllm/config/cache.py: gpu_memory_utilization")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShare:
    """Rules M1, M2, M3 and M6. After a change that ran out of memory, none proposes more memory."""

    step_ratio: float = 0.02  # M1: of the GPU's memory, in one step
    wide_step_ratio: float = 0.2  # M3
    ceiling_ratio: float = 0.92  # dense, unless the operator sets a bound
    moe_ceiling_ratio: float = 0.85  # all-to-all buffers are outside vLLM's accounting
    utmost_ratio: float = 0.95  # even above the operator's bound
    spare_ratio: float = 0.03  # of the GPU's memory that stays free after a step
    roomy_below_ratio: float = 0.75  # M3: used of the fullest GPU
    small_below_ratio: float = 0.8  # M1 without a driver's report: an unusually small share
    usual_ratio: float = 0.9  # and what it is raised to: vLLM's own until 0.20
    back_off_ratios: tuple[float, ...] = (0.85, 0.80)  # M2, before the sequence cap
    kv_full_above_ratio: float = 0.9  # in both halves of the window
    preemptions_at_least_per_s: float = 0.1  # where their cost is not known
    recomputed_at_least_ratio: float = 0.05  # of the engine's time
    requests_at_least: int = 20  # behind a missed objective
    coverage_at_least_ratio: float = 0.8
    settle_s: float = 600.0  # seconds after a promotion without a step in the other direction

    def __post_init__(self) -> None:
        check_options(self)
        if not 0 < self.step_ratio <= self.wide_step_ratio < self.ceiling_ratio <= self.utmost_ratio <= 1:
            raise ValueError(
                "0 < step_ratio <= wide_step_ratio < ceiling_ratio <= utmost_ratio <= 1 must hold, not "
                f"{self.step_ratio}, {self.wide_step_ratio}, {self.ceiling_ratio}, {self.utmost_ratio}"
            )

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        if is_idle(reading) or reading.coverage < self.coverage_at_least_ratio:
            return ()
        if why := _describe_oom(reading):
            answer = self._lower_share(reading, context, why)
        elif reading.stands_still or any(map(ran_out_of_memory, context.outcomes)):
            return ()
        else:
            answer = self._raise_share(reading, context)
        return (answer,) if answer else ()

    def _raise_share(self, reading: Reading, context: Context) -> Proposal | None:
        recomputed = recomputed_share(reading)
        costly = (
            has_preemptions(reading, self.preemptions_at_least_per_s)
            if recomputed is None
            else recomputed >= self.recomputed_at_least_ratio
        )
        share, used = find_memory_share(reading, context), find_used_share(reading)
        fixed = next((knob for knob in (BLOCKS, BYTES) if context.setting.get(knob) is not None), None)
        if share is None or not (costly or self._makes_queue(reading, context)):
            return None
        if is_time_measured(reading, context.slo, self.requests_at_least):
            needed = has_need(reading, context.slo, self.requests_at_least)
            # A small cache makes the engine compute prompts again, which looks like an overload.
            small = fixed is not None or share < self.small_below_ratio
            if not needed or (not small and is_overloaded(reading, context)):
                return None
        if fixed is not None:
            return self._free_size(reading, context, fixed)
        if used is None:
            return self._raise_unseen(reading, context, share)
        rule = "M3" if used < self.roomy_below_ratio else "M1"
        step = self.wide_step_ratio if rule == "M3" else self.step_ratio
        value = round(min(share + step, self.ceiling(context)), 4)
        # A green starts beside this server, and takes its share at once: half of what the others leave.
        free = (1 - used - share) / 2 if context.strategy == "surge" else 1 - used
        bound = context.bound(SHARE)
        if value <= share or not bound.allows(value) or free < value - share + self.spare_ratio:
            return None
        if was_reversed_recently(reading, context, (SHARE,), upwards=True, settle_s=self.settle_s):
            return None
        return Proposal(
            rule=rule,
            to={SHARE: value},
            assumed={SHARE: share},
            why=(
                f"{_describe_pressure(reading)} while the fullest GPU has {1 - used:.0%} of its memory free: "
                f"raise {SHARE} from {share:g} to {value:g}"
            ),
            expects="more KV cache: fewer preemptions, more requests at once",
            risks="less memory for activations, graphs and other processes; an OOM blocks further increases",
            source=SOURCE,
            evidence=_evidence(reading, used),
            mitigation=True,
        )

    def _makes_queue(self, reading: Reading, context: Context) -> bool:
        """True if requests wait for room in the cache."""
        if reading.queue is not None and find_misses(reading, context.slo, self.requests_at_least):
            return find_queue_cause(reading, context) == "kv"
        return is_kv_cache_full(reading, self.kv_full_above_ratio) and reading.waiting.low > 0

    def _free_size(self, reading: Reading, context: Context, knob: Knob) -> Proposal | None:
        """Relax a fixed size of the cache: remove a number of blocks, double a number of bytes."""
        present = context.setting[knob]
        value = None if knob == BLOCKS or not isinstance(present, int) else 2 * present
        if not context.bound(knob).allows(value):
            return None
        if was_reversed_recently(reading, context, (knob,), upwards=True, settle_s=self.settle_s):
            return None
        return Proposal(
            rule="M6",
            to={knob: value},
            assumed={knob: present},
            why=(
                f"{_describe_pressure(reading)} while {knob} fixes its size at {present}: "
                + (f"raise it to {value}" if value else f"remove it, so that {SHARE} sizes the cache")
            ),
            expects="more KV cache: fewer preemptions, more requests at once",
            risks="a larger cache needs free memory: if other processes hold it, green does not start",
            source=SOURCE,
            evidence=_evidence(reading, find_used_share(reading)),
            klass="gated",
            mitigation=True,
        )

    def _raise_unseen(self, reading: Reading, context: Context, share: float) -> Proposal | None:
        """Raise a small share to the usual share, gated, if no driver reports the memory in use."""
        value = min(self.usual_ratio, self.ceiling(context))
        bound = context.bound(SHARE)
        if context.strategy == "surge" or share >= self.small_below_ratio or value <= share:
            return None  # with "surge" a green has to find as much again
        if not bound.allows(value):
            return None
        if was_reversed_recently(reading, context, (SHARE,), upwards=True, settle_s=self.settle_s):
            return None
        return Proposal(
            rule="M1",
            to={SHARE: value},
            assumed={SHARE: share},
            why=(
                f"{_describe_pressure(reading)} while vLLM takes only {share:.0%} of the GPU's memory: "
                f"raise {SHARE} from {share:g} to {value:g}, if nvidia-smi shows the rest free"
            ),
            expects="more KV cache: fewer preemptions, more requests at once",
            risks="the memory in use is not reported: if other processes hold it, green does not start",
            source=SOURCE,
            evidence=build_evidence(reading, *_cache(reading)),
            klass="gated",
            mitigation=True,
        )

    def ceiling(self, context: Context) -> float:
        """The highest share allowed on this server."""
        bound = context.bound(SHARE)
        highest = bound.max if bound.max is not None else self.ceiling_ratio
        return min(highest, self.moe_ceiling_ratio if _is_moe(context) else self.utmost_ratio)

    def _lower_share(self, reading: Reading, context: Context, symptom: str) -> Proposal | None:
        for to, assumed in self._list_reductions(reading, context):
            if any(ran_out_of_memory(o) and to.items() <= o.to.items() for o in context.outcomes):
                continue
            values = " and ".join(f"{knob} {value}" for knob, value in to.items())
            proposal = Proposal(
                rule="M2",
                to=to,
                assumed=assumed,
                why=f"{symptom} within the last {reading.span_s:.0f} s: lower to {values}",
                expects="memory for allocations outside vLLM's accounting; no further OOM",
                risks=(
                    "less KV cache or fewer requests at once; if the kernel killed it for lack of host "
                    "memory, raise the container's memory limit instead"
                ),
                source=SOURCE,
                evidence=_evidence(reading, find_used_share(reading)),
                mitigation=True,
            )
            return replace(proposal, klass="gated") if LENGTH in to else proposal
        return None

    def _list_reductions(self, reading: Reading, context: Context) -> list[_Change]:
        """The memory share first, then fewer sequences, then (gated) a shorter context."""
        share = None if context.setting.get(BYTES) is not None else find_memory_share(reading, context)
        bound = context.bound(SHARE)
        chain: list[_Change] = [
            ({SHARE: value}, {SHARE: share})
            for value in self.back_off_ratios
            if share is not None and value < share and bound.allows(value)
        ]
        if fewer := lower_cap(reading, context, find_cap(reading, context)):
            chain.append((dict(fewer), dict.fromkeys(fewer, find_peak_running(reading, context))))
        length = positive_int(context.setting, LENGTH)
        shorter = step_down(context.bound(LENGTH), current=length, at_most=length / 2) if length else None
        if shorter is not None:
            chain.append(({LENGTH: shorter}, {LENGTH: length}))
        return chain


def _is_moe(context: Context) -> bool:
    model = context.config.model if context.config else None
    return bool(model and model.experts) or context.setting.get("enable_expert_parallel") is True


def _describe_oom(reading: Reading) -> str:
    for incident in reading.incidents:
        if incident.what == "oom" or "out of memory" in incident.why.lower():
            return f"{incident.server} ran out of memory ({incident.why})"
    return ""


def _describe_pressure(reading: Reading) -> str:
    """Why the cache is short; the more pressing signal is first. M1 and M3 require one of the two."""
    rate, usage = reading.preemptions_per_s, reading.kv_usage
    thrash = [f"{rate.mean:.2f} preemptions/s"] if rate and has_preemptions(reading) else []
    full = [f"a KV cache {usage.mean:.0%} full"] if usage else []
    pressed = ", ".join([*thrash, *full])
    return f"over {reading.span_s:.0f} s {pressed} and {reading.waiting.mean:.1f} requests waiting"


def _evidence(reading: Reading, used: float | None) -> tuple[Evidence, ...]:
    return build_evidence(reading, *_cache(reading), ("gpu_memory_used", used, "ratio"))


def _cache(reading: Reading) -> tuple[Measured, Measured]:
    """Preemptions and cache usage as evidence; the more pressing signal is first."""
    usage, preemptions = reading.kv_usage, reading.preemptions_per_s
    full: Measured = ("kv_usage", usage.mean if usage else None, "ratio")
    thrash: Measured = ("preemptions", preemptions.mean if preemptions else None, "1/s")
    return (thrash, full) if has_preemptions(reading) else (full, thrash)


plugin = MemoryShare
