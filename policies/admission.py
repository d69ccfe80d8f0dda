"""Size the number of concurrent requests: up while requests queue and KV is free, down on preemptions."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from flettner.agent.domain.lateness import has_need, is_measured, late_share, misses_objective
from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.causes import (
    MOST_COST,
    Miss,
    describe_shares,
    find_misses,
    find_queue_cause,
    is_overloaded,
    is_time_measured,
    preemptions_per_request,
    recomputed_share,
)
from flettner.policies.shared.flags_in_force import find_step_budget
from flettner.policies.shared.overload import can_be_relieved, can_end_queue
from flettner.policies.shared.sequence_cap import (
    ACTIVE,
    SEQS,
    SequenceCap,
    count_engines,
    find_cap,
    find_peak_running,
    lower_cap,
    raise_cap,
)
from flettner.policies.shared.sequence_demand import (
    SERVED,
    are_tokens_late_anyway,
    can_serve_with,
    find_held_sequences,
    gain_of_cap,
    is_severe,
    is_thrashing,
    most_sequences_in_time,
    needed_sequences,
    wanted_sequences,
)
from flettner.policies.shared.signals import (
    Measured,
    build_evidence,
    build_note,
    check_options,
    find_peak_gpu_utilization,
    has_insufficient_data,
    has_preemptions,
    measure_load,
    read_number,
)
from flettner.policies.shared.step_grid import BATCHES, step_down, was_reversed_recently
from flettner.policies.shared.token_budget import IN_TIME, is_budget_enough, size_budget, step_in_time
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.references import METRICS, OPTIMIZATION
from flettner.vllm_facts.releases import cite
from flettner.vllm_facts.values import Knob, Value

WATERMARK, GRAPH = "watermark", "max_cudagraph_capture_size"
GRAPH_MOST = 1024
WATERMARKS = (0.02, 0.05)
ROOM = 0.9  # of the sequences that fill the KV cache: their lengths vary
MORE_KV = "more sequences would make it worse; more KV cache or another replica would help"
SOURCE, BATCH_SOURCE = f"{OPTIMIZATION} (preemption)", f"{OPTIMIZATION} (max_num_seqs)"
LEAST_BUDGET = 256  # Q5: tokens: no smaller budget is worth its loss
FEWER = 0.9  # Q5: of the peak of running sequences: a smaller cut is not worth a change


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Rules Q1, Q2, Q5, K1, K2, and K3 (a note): pressure on the KV cache outranks the queue.

    Between `kv_free_below_ratio` and `kv_full_above_ratio` the policy proposes neither direction.
    """

    queue_at_least: float = 1.0  # requests that wait, in both halves of the window
    cap_reached_ratio: float = 0.9  # running over the cap, in both halves
    kv_free_below_ratio: float = 0.6  # Q1: highest KV usage of the window
    kv_target_ratio: float = 0.8  # highest KV usage after a step, in proportion
    kv_idle_below_ratio: float = 0.3  # K3's note: highest KV usage of the window
    kv_full_above_ratio: float = 0.95  # K2: in both halves of the window
    preemptions_at_least_per_s: float = 0.1  # K1: mean of the window
    recomputed_at_least_ratio: float = 0.1  # K1, K2: of the engine's time
    requests_at_least: int = 20  # behind a missed objective
    gpu_idle_below_ratio: float = 0.2  # K3's note: utilisation
    coverage_at_least_ratio: float = 0.8
    settle_s: float = 600.0  # seconds after a promotion without a step in the other direction

    def __post_init__(self) -> None:
        check_options(self)
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
        answer = (
            self._raise_cap(reading, context)
            or _lower_for_tokens(reading, context, requests=self.requests_at_least, settle_s=self.settle_s)
            or self._note_spare_capacity(reading, context)
        )
        return (answer,) if answer else ()

    def _is_cache_full(self, reading: Reading, context: Context) -> bool:
        """True if the cache, less the watermark's share, is full in both halves of the window."""
        usage, reserve = reading.kv_usage, min(1.0, read_number(context.setting, WATERMARK) or 0.0)
        above = self.kv_full_above_ratio * (1 - reserve)
        return usage is not None and min(usage.early, usage.late) > above

    def _has_queue(self, reading: Reading) -> bool:
        waiting = reading.waiting
        return waiting.low > 0 and min(waiting.early, waiting.late) >= self.queue_at_least

    def _relieve(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        preemptions, full = reading.preemptions_per_s, self._is_cache_full(reading, context)
        enough = self._is_costly(reading, context) and self._can_fit(reading, context)
        # Two halves of a steady rate differ by rounding alone.
        rises = preemptions is not None and preemptions.late >= 0.99 * preemptions.early
        answers: list[Proposal | None] = []
        if preemptions is not None and preemptions.mean > 0 and enough and (rises or full):
            rule = "K1" if rises else "K2"
            answers = [self._raise_watermark(rule, reading, context), self._lower_cap(rule, reading, context)]
            if is_thrashing(reading) or needed_sequences(reading) is not None:  # fewer are known to be enough
                answers.reverse()
        if full or (any(answers) and self._has_queue(reading)):
            answers.append(self._note_missing_cache(reading))
        return tuple(answer for answer in answers if answer)

    def _is_costly(self, reading: Reading, context: Context) -> bool:
        """True if much of the engine's time goes into computing preempted requests again.

        Or if tokens come late where many requests are preempted: they wait in the middle of their answer.
        Where that time is unknown, as before a request has ended, the preemptions for each request count.
        """
        share, each = recomputed_share(reading), preemptions_per_request(reading)
        if share is None and each is None:
            return has_preemptions(reading, self.preemptions_at_least_per_s)
        late = misses_objective(reading.itl, context.slo.itl, self.requests_at_least)
        many = each is not None and each >= self.recomputed_at_least_ratio
        return (share or 0.0) >= self.recomputed_at_least_ratio or (many and (late or share is None))

    def _can_fit(self, reading: Reading, context: Context) -> bool:
        """True if requests are late, and fewer sequences at once could serve the arrivals."""
        slo, least = context.slo, self.requests_at_least
        measured = is_time_measured(reading, slo, least) or is_measured(reading.itl, slo.itl, least)
        if reading.work.arrivals_per_s == 0 or (measured and not has_need(reading, slo, least)):
            return False
        hopeless = is_overloaded(reading, context) or are_tokens_late_anyway(reading, context)
        return not hopeless and can_be_relieved(reading, slo)

    def _raise_watermark(self, rule: str, reading: Reading, context: Context) -> Proposal | None:
        """The mildest remedy: keep a small share of the cache free on admission."""
        value = context.setting.get(WATERMARK)
        exists = KNOBS[WATERMARK].in_version(reading.facts.get("version"))
        current = float(value) if isinstance(value, (int, float)) else 0.0
        bound = context.bound(WATERMARK)
        higher = next((step for step in WATERMARKS if step > current and bound.allows(step)), None)
        if higher is None or not (exists or (exists is None and value is not None)):
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
            source=cite(f"vllm/config/scheduler.py: watermark; {SOURCE}"),
            evidence=build_evidence(reading, *_cache(reading)),
            mitigation=True,
        )

    def _lower_cap(self, rule: str, reading: Reading, context: Context) -> Proposal | None:
        cap = find_cap(reading, context)
        to = lower_cap(reading, context, cap, at_most=ROOM * find_held_sequences(reading))
        turned = was_reversed_recently(
            reading, context, (SEQS, ACTIVE), upwards=False, settle_s=self.settle_s
        )
        if (
            not to
            or turned
            or not can_serve_with(reading, min(to.values()) * count_engines(context.setting, reading))
        ):
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
            source=SOURCE,
            evidence=build_evidence(reading, *_cache(reading)),
            mitigation=True,
        )

    def _note_missing_cache(self, reading: Reading) -> Proposal:
        rule = "Q2" if self._has_queue(reading) else "K2"
        why = f"{_thrashing(reading)}, and {reading.waiting.mean:.1f} requests waited"
        return build_note(rule, reading, why, MORE_KV, SOURCE, *_cache(reading))

    def _raise_cap(self, reading: Reading, context: Context) -> Proposal | None:
        usage, cap = reading.kv_usage, find_cap(reading, context)
        if usage is None or cap is None or usage.high >= self.kv_free_below_ratio:
            return None
        misses = find_misses(reading, context.slo, self.requests_at_least)
        turned = was_reversed_recently(reading, context, (SEQS, ACTIVE), upwards=True, settle_s=self.settle_s)
        late_anyway = are_tokens_late_anyway(reading, context)
        if turned or late_anyway or not self._explains(reading, context, cap, misses):
            return None
        to = self._raised(reading, context, cap, misses)
        if not to:
            return None
        sequences = cap.engines * min(
            value for knob in (SEQS, ACTIVE) if isinstance(value := to.get(knob), int)
        )
        if not can_end_queue(reading, gain=gain_of_cap(reading, context, sequences)):
            return None
        values = " and ".join(f"{knob} {value}" for knob, value in to.items())
        enough = sequences >= wanted_sequences(reading, context, cap, misses)
        queue = "the queue empties" if enough else "the queue gets shorter, and is evaluated again"
        return Proposal(
            rule="Q1",
            to=to,
            assumed={knob: _present(knob, reading, context, cap) for knob in to},
            why=(
                f"{_describe_queueing(misses)}over {reading.span_s:.0f} s {reading.waiting.mean:.1f} "
                f"requests waited while {reading.running.mean:.1f} ran ({cap.origin}) and the KV cache was "
                f"at most {usage.high:.0%} full: raise to {values}"
            ),
            expects=f"{queue}: TTFT falls, throughput rises until the KV cache is the limit",
            risks="ITL rises with the batch; preemptions if requests are longer than those seen",
            source=cite(f"vllm/config/scheduler.py: max_num_seqs; {METRICS}"),
            evidence=build_evidence(
                reading, *describe_shares(misses), *measure_load(reading), *_cache(reading)
            ),
            mitigation=True,
        )

    def _explains(
        self, reading: Reading, context: Context, cap: SequenceCap, misses: tuple[Miss, ...]
    ) -> bool:
        """True if the cap makes the queue, and the queue makes requests late.

        Where too few requests show whether they are late, the queue must last the full window.
        """
        if misses:
            by_queue = [miss for miss in misses if miss.shares and miss.shares.queue >= MOST_COST]
            return bool(by_queue) and find_queue_cause(reading, context) == "cap"
        if is_time_measured(reading, context.slo, self.requests_at_least):
            return False
        reached = min(reading.running.early, reading.running.late) >= self.cap_reached_ratio * cap.in_all
        return self._has_queue(reading) and reached

    def _raised(
        self, reading: Reading, context: Context, cap: SequenceCap, misses: tuple[Miss, ...]
    ) -> dict[Knob, Value]:
        """The raised cap, with the token budget and the graph sizes that it needs."""
        wanted = wanted_sequences(reading, context, cap, misses)
        limit = inf if is_severe(misses) else most_sequences_in_time(reading, context)
        to: dict[Knob, Value] = {
            **raise_cap(reading, context, cap, kv_target=self.kv_target_ratio, wanted=wanted, at_most=limit)
        }
        seqs = to.get(SEQS)
        if not to or not misses:
            return to
        running = min(needed_sequences(reading) or wanted, float(wanted))
        knob = find_step_budget(context.setting, reading)[0]
        given = positive_int(context.setting, knob) is not None
        late_tokens = misses_objective(reading.itl, context.slo.itl, self.requests_at_least)
        if given and not late_tokens and not is_budget_enough(reading, context, running):
            budget = size_budget(reading, context, running)
            to |= {} if budget is None else {knob: budget}
        graph = positive_int(context.setting, GRAPH)
        if isinstance(seqs, int) and graph is not None and graph < seqs <= GRAPH_MOST:
            to |= {GRAPH: seqs} if context.bound(GRAPH).allows(seqs) else {}
        return to

    def _note_spare_capacity(self, reading: Reading, context: Context) -> Proposal | None:
        usage, cap = reading.kv_usage, positive_int(context.setting, SEQS)
        if usage is None or cap is None or usage.high >= self.kv_idle_below_ratio or reading.waiting.high > 0:
            return None
        busy, running, slo = find_peak_gpu_utilization(reading), reading.running.high, context.slo
        late = misses_objective(reading.ttft, slo.ttft, 1) or misses_objective(reading.itl, slo.itl, 1)
        few = cap * count_engines(context.setting, reading) / 4
        if late or busy is None or busy >= self.gpu_idle_below_ratio or running > few:
            return None
        why = (
            f"over-provisioned: over {reading.span_s:.0f} s nothing waited, at most {running:.0f} of {cap} "
            f"sequences ran, the KV cache was at most {usage.high:.0%} full and the GPU {busy:.0%} busy"
        )
        advice = "no change: fewer replicas or a smaller GPU would be enough"
        numbers = (*_cache(reading), ("gpu_utilization", busy, "ratio"))
        return build_note("K3", reading, why, advice, METRICS, *numbers)


def _lower_for_tokens(
    reading: Reading, context: Context, *, requests: int, settle_s: float
) -> Proposal | None:
    """Q5: lower the cap to the batch whose steps are in time, where a large batch alone makes tokens late.

    Only while nothing waits, and if the smaller batch still serves all that arrive: N sequences give N / gap
    tokens a second. So it shortens the steps of bursts; a lasting load would only wait.
    """
    itl, objective, shares = reading.itl, context.slo.itl, reading.itl_shares
    work, cap = reading.work, find_cap(reading, context)
    if itl is None or objective is None or shares is None or cap is None:
        return None
    prompts = step_in_time(reading, objective)
    if shares.decode < MOST_COST and (prompts is None or prompts >= LEAST_BUDGET):
        return None  # P2 shortens the steps
    if not misses_objective(itl, objective, requests) or reading.waiting.low > 0:
        return None
    if find_misses(reading, context.slo, requests):
        return None
    most = most_sequences_in_time(reading, context, safely=IN_TIME)
    tokens = (work.arrivals_per_s or 0.0) * (work.answer_tokens or 0.0)
    if most > FEWER * reading.running.high or most / objective.under_s < SERVED * tokens:
        return None
    knob = cap.knob
    value = step_down(context.bound(knob), current=cap.value, at_most=most / cap.engines, grid=BATCHES)
    turned = was_reversed_recently(reading, context, (SEQS, ACTIVE), upwards=False, settle_s=settle_s)
    if value is None or turned or value * cap.engines > most:
        return None
    return Proposal(
        rule="Q5",
        to={knob: value},
        assumed={knob: cap.value},
        why=(
            f"{late_share(itl):.0%} of the requests had ITL above {objective.under_s:g} s, "
            f"{shares.decode:.0%} of the excess in steps without prompts, while up to "
            f"{reading.running.high:.0f} ran ({cap.origin}): lower to {knob} {value}"
        ),
        expects="smaller batches have shorter steps: ITL falls; some requests wait for their start",
        risks="a queue: TTFT rises, and throughput falls",
        source=BATCH_SOURCE,
        evidence=build_evidence(reading, ("itl_decode_share", shares.decode, "ratio")),
        mitigation=True,
    )


def _present(knob: Knob, reading: Reading, context: Context, cap: SequenceCap) -> Value:
    if knob in (SEQS, ACTIVE):
        return cap.value
    return context.setting.get(knob) or find_step_budget(context.setting, reading)[1]


def _describe_queueing(misses: tuple[Miss, ...]) -> str:
    """The missed objective and the share of the queue, in a clause."""
    if not misses or (shares := misses[0].shares) is None:
        return ""
    miss = misses[0]
    return f"{miss.late:.0%} of the requests were late and {shares.queue:.0%} of {miss.name} is queueing: "


def _thrashing(reading: Reading) -> str:
    """A summary of preemptions and cache usage; the more pressing signal is first."""
    full = f"KV cache {reading.kv_usage.mean:.0%} full" if reading.kv_usage else ""
    rate = reading.preemptions_per_s
    if rate is None or not has_preemptions(reading):
        return f"{full} over {reading.span_s:.0f} s"
    return f"{rate.mean:.2f} preemptions/s over {reading.span_s:.0f} s" + (
        f", {full}" if full else " for lack of KV cache"
    )


def _cache(reading: Reading) -> tuple[Measured, Measured]:
    """Preemptions and cache usage as evidence; the more pressing signal is first."""
    usage, preemptions = reading.kv_usage, reading.preemptions_per_s
    full: Measured = ("kv_usage_high", usage.high if usage else None, "ratio")
    thrash: Measured = ("preemptions", preemptions.mean if preemptions else None, "1/s")
    return (thrash, full) if has_preemptions(reading) else (full, thrash)


plugin = Admission
