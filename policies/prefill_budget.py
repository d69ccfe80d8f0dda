"""Size the token budget of a step between TTFT, which wants it large, and ITL, which wants it small."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from sys import float_info

from flettner.agent.domain.lateness import misses_objective
from flettner.agent.domain.model import Objective, Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Latency, Reading
from flettner.policies.shared.causes import (
    MOST_COST,
    Miss,
    describe_shares,
    find_misses,
    find_queue_cause,
    is_budget_filled,
    recomputed_share,
)
from flettner.policies.shared.flags_in_force import BATCHED, SCHEDULED, find_step_budget
from flettner.policies.shared.sequence_demand import can_decode_in_time, can_lift_costly_flag
from flettner.policies.shared.signals import (
    Measured,
    build_evidence,
    build_note,
    has_preemptions,
    is_kv_cache_full,
)
from flettner.policies.shared.step_grid import step_down, step_up, was_reversed_recently
from flettner.policies.shared.token_budget import (
    IN_TIME,
    approach_default,
    gap_between_tokens,
    least_budget,
    size_budget,
    step_in_time,
)
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.references import OPTIMIZATION
from flettner.vllm_facts.values import ChangeClass, Knob

TAIL_LOW, TAIL_HIGH = (
    4096,
    8192,
)  # budgets for a long tail of TTFT or ITL: between the default and 8192 of OPTIMIZATION
TAIL_SHARE = 0.01  # share of requests above a p99
LEAST_RESERVE = 1.1  # P2: rate of prompts over their arrival that must remain
LEAST = 256  # prompt tokens: with fewer, a step is hardly slower than without any
CHUNKED = "; V1 chunks prompts anyway, so this is the chunk's size"
DECODING = (
    "the token budget is not the cause: check enforce_eager, a forced attention backend, "
    "async_scheduling and untuned MoE kernels; else fewer sequences at once, or replicas"
)

SOURCE = f"{OPTIMIZATION} (chunked prefill: small budgets favour ITL, large budgets TTFT)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillBudget:
    """Rules P1, P2 and P3. They pull in opposite directions, so one policy owns them.

    P1 asks where the time of late requests went: it moves only what the budget makes. A latency has headroom
    when at most `fine_ratio` of the allowed share is late. Above, it permits no step at its expense.
    """

    requests_at_least: int = 20  # behind each latency
    queue_empty_below: float = 0.5  # requests that wait, mean of both halves of the window
    fine_ratio: float = 0.5
    tail_ratio: float = 5.0  # p99 over p50
    kv_full_above_ratio: float = 0.9  # preemptions make requests late, not the budget
    recomputed_ratio: float = 0.05  # of the engine's time, by preemptions
    coverage_at_least_ratio: float = 0.8
    settle_s: float = 600.0  # seconds after a promotion without a step in the other direction

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if not 0 <= value <= float_info.max:
                raise ValueError(f"{option.name} must be a number from 0, not {value}")
        if self.requests_at_least < 1 or self.tail_ratio <= 1 or self.fine_ratio > 1:
            raise ValueError(
                "requests_at_least must be at least 1, tail_ratio above 1 and fine_ratio at most 1, not "
                f"{self.requests_at_least}, {self.tail_ratio}, {self.fine_ratio}"
            )

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        if reading.coverage < self.coverage_at_least_ratio or reading.stands_still:
            return ()
        if self._has_kv_pressure(reading):
            return ()
        slo = context.slo
        ttft, itl = self._with_enough_samples(reading.ttft), self._with_enough_samples(reading.itl)
        queue_empty = max(reading.waiting.early, reading.waiting.late) < self.queue_empty_below
        itl_fine, ttft_fine = self._meets_objective(itl, slo.itl), self._meets_objective(ttft, slo.ttft)
        misses = find_misses(reading, slo, self.requests_at_least)
        answer: Proposal | None = None
        if misses and (itl_fine or can_lift_costly_flag(context)):  # that flag makes tokens late too
            answer = self._serve_prompts(reading, context, misses)
        elif itl and slo.itl and misses_objective(itl, slo.itl, self.requests_at_least) and ttft_fine:
            answer = self._shorten_steps(reading, context, itl, slo.itl)
        elif (
            ttft
            and self._has_long_tail(ttft, slo.ttft)
            and queue_empty
            and itl_fine
            and not _exceeds_ratio(itl, self.tail_ratio)
        ):
            answer = self._move_into_band(reading, context, upwards=True, why=_describe_tail("TTFT", ttft))
        elif (
            itl
            and self._has_long_tail(itl, slo.itl)
            and ttft_fine
            and _has_prompt_backlog(reading, TAIL_SHARE)
        ):
            answer = self._move_into_band(reading, context, upwards=False, why=_describe_tail("ITL", itl))
        return (answer,) if answer else ()

    def _serve_prompts(self, reading: Reading, context: Context, misses: tuple[Miss, ...]) -> Proposal | None:
        """P1, if prompts in small pieces make requests late: these prompts, or requests behind them."""
        filled = is_budget_filled(reading, context)
        to = size_budget(reading, context) or (approach_default(reading, context) if filled else None)
        miss = max(misses, key=_by_prompts)
        shares = miss.shares
        if to is None or shares is None:
            return None
        queued = find_queue_cause(reading, context) == "budget"
        if shares.prefill + (shares.queue if queued else 0.0) < MOST_COST:
            return None
        if not filled and not self._is_cut(reading, context):
            return None
        why = (
            f"{miss.late:.0%} of the requests were late, {shares.prefill:.0%} of {miss.name} is prefill and "
            f"{shares.queue:.0%} queueing, with {reading.work.step_tokens or 0:.0f} tokens in the mean step"
        )
        return self._raise("P1", reading, context, why, to=to, numbers=describe_shares(misses))

    def _is_cut(self, reading: Reading, context: Context) -> bool:
        """True if the mean prompt takes several steps."""
        tokens = reading.work.prompt_tokens
        return tokens is not None and tokens > find_step_budget(context.setting, reading)[1]

    def _shorten_steps(
        self, reading: Reading, context: Context, itl: Latency, objective: Objective
    ) -> Proposal | None:
        """P2, if steps with prompts make tokens late, and smaller ones still serve the prompts.

        With a margin below the objective, or LEAST: in worlds of bench.loop.flat, larger steps without one
        made 6 to 16 of 100 requests late. A budget spreads the time of prompts evenly, but does not shorten
        it: in eight worlds, 256 tokens gained 3 to 29 points where the median ITL was in time, and -10 to 0
        where it was late.
        """
        why, late = _describe_late("ITL", itl, objective), itl.over_slo or 0.0
        shares = reading.itl_shares
        if shares is None:
            by_prompts = _has_prompt_backlog(reading, late)
        else:
            measured = reading.work.decode_step_s is not None or _has_prompt_backlog(reading, late)
            by_prompts = measured and shares.prefill >= MOST_COST
            why = f"{why}, {shares.prefill:.0%} of the excess in steps that read prompts,"
        most = step_in_time(reading, objective)
        is_median_late = itl.p50 > objective.under_s
        if not by_prompts or most == 0 or is_median_late or not can_decode_in_time(reading, context):
            return _note_slow_decoding(reading, why)
        if most is None:
            return self._lower("P2", reading, context, why)
        least = least_budget(reading, reserve=LEAST_RESERVE)
        safe = step_in_time(reading, replace(objective, under_s=IN_TIME * objective.under_s)) or 0.0
        least = LEAST if least is None else least
        if least > max(LEAST, int(safe)) or gap_between_tokens(reading) > objective.under_s:
            return _note_slow_decoding(reading, why)
        return self._lower("P2", reading, context, why, to=max(int(safe), least))

    def _has_kv_pressure(self, reading: Reading) -> bool:
        """True if the cache is full throughout, or preemptions cost more than a little time."""
        recomputed = recomputed_share(reading)
        preempts = has_preemptions(reading) if recomputed is None else recomputed > self.recomputed_ratio
        return preempts or is_kv_cache_full(reading, self.kv_full_above_ratio)

    def _with_enough_samples(self, latency: Latency | None) -> Latency | None:
        if latency is None or latency.count + latency.overdue < self.requests_at_least:
            return None
        return latency

    def _meets_objective(self, latency: Latency | None, objective: Objective | None) -> bool:
        """True without an objective; False with an objective and no measured latency."""
        if objective is None:
            return True
        late = latency.over_slo if latency else None
        return late is not None and late <= self.fine_ratio * (1 - objective.share)

    def _has_long_tail(self, latency: Latency, objective: Objective | None) -> bool:
        """A long tail below the objective needs no change."""
        harmless = objective is not None and latency.p99 <= objective.under_s
        return _exceeds_ratio(latency, self.tail_ratio) and not harmless

    def _move_into_band(
        self, reading: Reading, context: Context, *, upwards: bool, why: str
    ) -> Proposal | None:
        _, current, _ = find_step_budget(context.setting, reading)
        if upwards and current < TAIL_LOW:
            return self._raise("P3", reading, context, why, to=TAIL_LOW)
        if not upwards and current > TAIL_HIGH:
            return self._lower("P3", reading, context, why, to=TAIL_HIGH)
        return None

    def _raise(
        self,
        rule: str,
        reading: Reading,
        context: Context,
        why: str,
        *,
        to: int,
        numbers: Sequence[Measured] = (),
    ) -> Proposal | None:
        knob, current, ceiling = find_step_budget(context.setting, reading)
        klass, guessed = _rate_confidence(reading, context, knob)
        queue = reading.waiting.mean
        value = step_up(context.bound(knob), current=current, wanted=to, limit=min(to, ceiling))
        if value is None or self._was_reversed(reading, context, upwards=True):
            return None
        return Proposal(
            rule=rule,
            to={knob: value},
            assumed={knob: current},
            why=f"{why} and {queue:.1f} waited: raise {knob} from {current} to {value}{guessed}",
            expects=f"prompts take fewer steps: TTFT falls{CHUNKED if rule == 'P3' else ''}",
            risks="ITL rises where prompts and answers share steps; activations take KV cache",
            source=SOURCE,
            evidence=build_evidence(reading, *numbers, *_latencies(reading, "ttft")),
            mitigation=rule == "P1",
            klass=klass,
        )

    def _lower(
        self, rule: str, reading: Reading, context: Context, why: str, to: int | None = None
    ) -> Proposal | None:
        knob, current, _ = find_step_budget(context.setting, reading)
        klass, guessed = _rate_confidence(reading, context, knob)
        seqs = positive_int(context.setting, "max_num_seqs") or 0
        least = max(LEAST, seqs)  # vLLM refuses fewer tokens than sequences
        wanted = to or current // 2
        value = step_down(context.bound(knob), current=current, at_most=wanted, least=least)
        if value is None or self._was_reversed(reading, context, upwards=False):
            return None
        return Proposal(
            rule=rule,
            to={knob: value},
            assumed={knob: current},
            why=f"{why} while prompts are mixed in: lower {knob} from {current} to {value}{guessed}",
            expects=f"prompts take less of each step: ITL falls{CHUNKED if rule == 'P3' else ''}",
            risks="long prompts take more steps: TTFT rises",
            source=SOURCE,
            evidence=build_evidence(reading, *_latencies(reading, "itl")),
            mitigation=rule == "P2",
            klass=klass,
        )

    def _was_reversed(self, reading: Reading, context: Context, *, upwards: bool) -> bool:
        knobs = (BATCHED, SCHEDULED)
        return was_reversed_recently(reading, context, knobs, upwards=upwards, settle_s=self.settle_s)


def _by_prompts(miss: Miss) -> float:
    return miss.shares.prefill + miss.shares.queue if miss.shares else 0.0


def _rate_confidence(reading: Reading, context: Context, knob: Knob) -> tuple[ChangeClass, str]:
    """False if neither the flag nor the GPU is known: the default is a guess, and the change is gated."""
    is_known = positive_int(context.setting, knob) is not None or any(
        gpu.memory_total_mib for gpu in reading.gpus
    )
    return ("auto", "") if is_known else ("gated", " (a guess: neither the flag nor the GPU is known)")


def _has_prompt_backlog(reading: Reading, late: float) -> bool:
    """True if steps that carry prompts can be half of the late steps, a share `late` of all steps.

    A second has answer tokens / running steps, and at most prompt tokens / LEAST of them carry a significant
    prompt.
    """
    prompts, answers = reading.prompt_tokens_per_s, reading.generation_tokens_per_s
    if prompts is None or prompts.mean <= 0:
        return prompts is None
    steps = answers.mean / max(1.0, reading.running.mean) if answers else 0.0
    return prompts.mean / LEAST >= late / 2 * steps


def _note_slow_decoding(reading: Reading, late: str) -> Proposal:
    """A note that the server is decode-bound: no change of the token budget helps."""
    rates = (reading.prompt_tokens_per_s, reading.generation_tokens_per_s)
    prompts, answers = (rate.mean if rate else 0.0 for rate in rates)
    why = (
        f"decode-bound: {late}, while {reading.running.mean:.1f} requests ran and only {prompts:.0f} prompt "
        f"tokens/s were computed with {answers:.0f} tokens/s of answers"
    )
    return build_note("P2", reading, why, DECODING, SOURCE, *_latencies(reading, "itl"))


def _exceeds_ratio(latency: Latency | None, ratio: float) -> bool:
    return latency is not None and latency.p50 > 0 and latency.p99 >= ratio * latency.p50


def _describe_late(name: str, latency: Latency, objective: Objective) -> str:
    return (
        f"{latency.over_slo or 0:.1%} of {latency.count:.0f} requests had {name} above "
        f"{objective.under_s:g} s ({1 - objective.share:.1%} may)"
    )


def _describe_tail(name: str, latency: Latency) -> str:
    return (
        f"{name} p99 {latency.p99:.3f} s is {latency.p99 / latency.p50:.1f} times its p50 {latency.p50:.3f} s"
    )


def _latencies(reading: Reading, first: str) -> list[Measured]:
    """The latency that the step improves, then the latency that it worsens."""
    both = sorted((("ttft", reading.ttft), ("itl", reading.itl)), key=lambda named: named[0] != first)
    numbers: list[Measured] = []
    for name, latency in both:
        if latency is not None:
            numbers += [(f"{name}_over_slo", latency.over_slo, "ratio"), (f"{name}_p99", latency.p99, "s")]
    return numbers


plugin = PrefillBudget
