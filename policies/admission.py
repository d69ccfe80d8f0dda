"""Size the number of concurrent requests: up while requests queue and KV is free, down on preemptions."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from sys import float_info

from agent.domain.model import Proposal
from agent.domain.ports import Context
from agent.domain.reading import Reading
from policies.shared.sequence_cap import (
    ACTIVE,
    SEQS,
    STEP_OCTAVES,
    SequenceCap,
    count_engines,
    find_cap,
    find_peak_demand,
    find_peak_running,
    lower_cap,
    raise_cap,
)
from policies.shared.signals import (
    Measured,
    build_evidence,
    build_note,
    find_peak_gpu_utilization,
    has_insufficient_data,
    has_preemptions,
    measure_load,
    misses_objective,
    read_number,
)
from policies.shared.step_grid import is_allowed, was_reversed_recently
from vllm_facts.defaults import positive_int
from vllm_facts.knobs import KNOBS

WATERMARK = "watermark"
WATERMARKS = (0.02, 0.05)
MORE_KV = "more sequences would make it worse; more KV cache or another replica would help"
TRIAGE = "production triage guide and vLLM 0.32 config/scheduler.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Rules Q1, Q2, K1, K2 and K3: pressure on the KV cache outranks the queue.

    Between `kv_free_below_ratio` and `kv_full_above_ratio` the policy proposes neither direction.
    """

    queue_at_least: float = 1.0  # requests that wait, in both halves of the window
    cap_reached_ratio: float = 0.9  # running over the cap, in both halves
    kv_free_below_ratio: float = 0.6  # Q1: highest KV usage of the window
    kv_target_ratio: float = 0.8  # highest KV usage after a step, in proportion (S4 P3: peaks at 50-80 %)
    kv_idle_below_ratio: float = 0.3  # K3: highest KV usage of the window
    kv_full_above_ratio: float = 0.95  # K2: in both halves of the window
    preemptions_at_least_per_s: float = 0.1  # K1: mean of the window
    load_rises_ratio: float = 1.25  # K3: late over early half
    gpu_idle_below_ratio: float = 0.2  # K3's note: utilisation
    coverage_at_least_ratio: float = 0.8
    settle_s: float = 600.0  # no step in the other direction so soon after a promotion

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if not 0 <= value <= float_info.max:
                raise ValueError(f"{option.name} must be a number from 0, not {value}")
        if not self.kv_idle_below_ratio <= self.kv_free_below_ratio < self.kv_full_above_ratio <= 1:
            raise ValueError(
                "kv_idle_below_ratio <= kv_free_below_ratio < kv_full_above_ratio <= 1 must hold, not "
                f"{self.kv_idle_below_ratio}, {self.kv_free_below_ratio}, {self.kv_full_above_ratio}"
            )

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        if has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        if has_preemptions(reading) or self._is_cache_full(reading, context):
            return self._relieve(reading, context)
        answer = self._raise_cap(reading, context) or self._note_spare_capacity(reading, context)
        return (answer,) if answer else ()

    def _is_cache_full(self, reading: Reading, context: Context) -> bool:
        """True if the cache, less the watermark's share, is full in both halves of the window."""
        usage, kept_free = reading.kv_usage, min(1.0, read_number(context.setting, WATERMARK) or 0.0)
        above = self.kv_full_above_ratio * (1 - kept_free)
        return usage is not None and min(usage.early, usage.late) > above

    def _has_queue(self, reading: Reading) -> bool:
        waiting = reading.waiting
        return waiting.low > 0 and min(waiting.early, waiting.late) >= self.queue_at_least

    def _relieve(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        preemptions, full = reading.preemptions_per_s, self._is_cache_full(reading, context)
        enough = preemptions is not None and preemptions.mean >= self.preemptions_at_least_per_s
        # Two halves of a steady rate differ by rounding alone.
        rises = preemptions is not None and preemptions.late >= 0.99 * preemptions.early
        answers: list[Proposal | None] = []
        if preemptions is not None and preemptions.mean > 0 and enough and (rises or full):
            rule = "K1" if rises else "K2"
            answers = [self._raise_watermark(rule, reading, context), self._lower_cap(rule, reading, context)]
        if full or (any(answers) and self._has_queue(reading)):
            answers.append(self._note_missing_cache(reading))
        return tuple(answer for answer in answers if answer)

    def _raise_watermark(self, rule: str, reading: Reading, context: Context) -> Proposal | None:
        """The mildest remedy: keep a small share of the cache free on admission."""
        value = context.setting.get(WATERMARK)
        known = KNOBS[WATERMARK].in_version(reading.facts.get("version"))
        current = float(value) if isinstance(value, (int, float)) else 0.0
        bound = context.bounds.get(WATERMARK)
        higher = next((step for step in WATERMARKS if step > current and is_allowed(bound, step)), None)
        if higher is None or not (known or (known is None and value is not None)):
            return None
        if was_reversed_recently(reading, context, (WATERMARK,), upwards=True, settle_s=self.settle_s):
            return None
        return Proposal(
            rule=rule,
            to={WATERMARK: higher},
            assumed={WATERMARK: current},
            why=f"{_thrashing(reading)}: keep {higher:.0%} of it free on admission instead of {current:.0%}",
            expects="fewer preemptions, so fewer prompts computed twice",
            risks="requests start slightly later; the cap may have to fall as well",
            source=f"rulebook {rule}; {TRIAGE} (watermark)",
            evidence=build_evidence(reading, *_cache(reading)),
            mitigation=True,
        )

    def _lower_cap(self, rule: str, reading: Reading, context: Context) -> Proposal | None:
        cap = find_cap(reading, context)
        to = lower_cap(reading, context, cap)
        turned = was_reversed_recently(
            reading, context, (SEQS, ACTIVE), upwards=False, settle_s=self.settle_s
        )
        if not to or turned:
            return None
        origin = cap.origin if cap else f"{SEQS} is not given"
        values = " and ".join(f"{knob} {value}" for knob, value in to.items())
        return Proposal(
            rule=rule,
            to=to,
            assumed=dict.fromkeys(to, find_peak_running(reading, context)),
            why=(
                f"{_thrashing(reading)}, up to {reading.running.high:.0f} running ({origin}): "
                f"lower to {values}"
            ),
            expects="the running sequences fit the KV cache; preemptions stop",
            risks="a longer queue: TTFT rises unless preemptions made requests late",
            source=f"rulebook {rule}; {TRIAGE}",
            evidence=build_evidence(reading, *_cache(reading)),
            mitigation=True,
        )

    def _note_missing_cache(self, reading: Reading) -> Proposal:
        rule = "Q2" if self._has_queue(reading) else "K2"
        why = f"{_thrashing(reading)}, and {reading.waiting.mean:.1f} requests waited"
        return build_note(rule, reading, why, MORE_KV, TRIAGE, *_cache(reading))

    def _raise_cap(self, reading: Reading, context: Context) -> Proposal | None:
        usage, cap = reading.kv_usage, find_cap(reading, context)
        if usage is None or cap is None or usage.high >= self.kv_free_below_ratio:
            return None
        rule = self._find_raise_rule(reading, cap, usage.high)
        turned = was_reversed_recently(reading, context, (SEQS, ACTIVE), upwards=True, settle_s=self.settle_s)
        to = raise_cap(reading, context, cap, kv_target=self.kv_target_ratio)
        if rule is None or turned or not to:
            return None
        values = " and ".join(f"{knob} {value}" for knob, value in to.items())
        enough = min(to.values()) * cap.engines >= find_peak_demand(reading)
        queue = "the queue empties" if enough else "the queue gets shorter, and is evaluated again"
        return Proposal(
            rule=rule,
            to=to,
            assumed=dict.fromkeys(to, cap.value),
            why=(
                f"over {reading.span_s:.0f} s {reading.waiting.mean:.1f} requests waited (never fewer than "
                f"{reading.waiting.low:.0f}) while {reading.running.mean:.1f} ran ({cap.origin}) and the KV "
                f"cache was at most {usage.high:.0%} full: raise to {values}"
            ),
            expects=f"{queue}: TTFT falls, throughput rises until the KV cache is the limit",
            risks="ITL rises with the batch; preemptions if requests are longer than those seen",
            source=f"rulebook {rule}; {TRIAGE}; a step of at most {STEP_OCTAVES} octaves: decisions/0003",
            evidence=build_evidence(reading, *measure_load(reading), *_cache(reading)),
            mitigation=True,
        )

    def _find_raise_rule(self, reading: Reading, cap: SequenceCap, kv_high: float) -> str | None:
        running = reading.running
        reached = self.cap_reached_ratio * cap.in_all
        if self._has_queue(reading) and min(running.early, running.late) >= reached:
            return "Q1"
        rises = running.late >= max(reached, self.load_rises_ratio * running.early) and running.early > 0
        waits = reading.waiting.late >= self.queue_at_least
        if kv_high < self.kv_idle_below_ratio and running.high >= reached and (waits or rises):
            return "K3"
        return None

    def _note_spare_capacity(self, reading: Reading, context: Context) -> Proposal | None:
        usage, cap = reading.kv_usage, positive_int(context.setting, SEQS)
        if usage is None or cap is None or usage.high >= self.kv_idle_below_ratio or reading.waiting.high > 0:
            return None
        busy, running = find_peak_gpu_utilization(reading), reading.running.high
        late = misses_objective(reading.ttft, context.slo.ttft, 1) or misses_objective(
            reading.itl, context.slo.itl, 1
        )
        if (
            busy is None
            or busy >= self.gpu_idle_below_ratio
            or running > cap * count_engines(context.setting) / 4
            or late
        ):
            return None
        why = (
            f"over-provisioned: over {reading.span_s:.0f} s nothing waited, at most {running:.0f} of {cap} "
            f"sequences ran, the KV cache was at most {usage.high:.0%} full and the GPU {busy:.0%} busy"
        )
        advice = "no change: fewer replicas or a smaller GPU would be enough"
        numbers = (*_cache(reading), ("gpu_utilization", busy, "ratio"))
        return build_note("K3", reading, why, advice, "parallelism guide, KV usage", *numbers)


def _thrashing(reading: Reading) -> str:
    """A summary of preemptions and cache usage, the pressing one first."""
    full = f"KV cache {reading.kv_usage.mean:.0%} full" if reading.kv_usage else ""
    rate = reading.preemptions_per_s
    if rate is None or not has_preemptions(reading):
        return f"{full} over {reading.span_s:.0f} s"
    return f"{rate.mean:.2f} preemptions/s over {reading.span_s:.0f} s" + (
        f", {full}" if full else " for lack of KV cache"
    )


def _cache(reading: Reading) -> tuple[Measured, Measured]:
    """Preemptions and cache usage as evidence, the pressing one first."""
    usage, preemptions = reading.kv_usage, reading.preemptions_per_s
    full: Measured = ("kv_usage_high", usage.high if usage else None, "ratio")
    thrash: Measured = ("preemptions", preemptions.mean if preemptions else None, "1/s")
    return (thrash, full) if has_preemptions(reading) else (full, thrash)


plugin = Admission
