"""The cap on running sequences and its next value: max_num_seqs or, warm, max_num_active_seqs."""

from dataclasses import dataclass
from math import ceil, inf

from flettner.agent.domain.model import Bound
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading, count_replicas
from flettner.policies.shared.flags_in_force import find_max_num_seqs, find_token_budget
from flettner.policies.shared.step_grid import BATCHES, step_down, step_up
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.values import Knob, Setting

SEQS, ACTIVE = "max_num_seqs", "max_num_active_seqs"
ALONE = ("data_parallel_external_lb", "data_parallel_multi_port_external_lb")  # each with a page of its own
STEP_OCTAVES = 3  # docs/decisions/0003: to a demand that is there already, no further in one step
PLATEAU_RATIO = 0.9  # lowest over highest running of a window that looks like a cap
AT_CAP_RATIO = 0.3
"""Of the window with the highest number of running requests, if that is a cap: a slot that becomes free is
filled within a step. Without a cap the highest number of a window of 30 scrapes is one of them, or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceCap:
    """The flag that binds, its value, and how the value is known. Each of `engines` has its own cap."""

    knob: Knob
    value: int
    origin: str
    engines: int = 1

    @property
    def in_all(self) -> int:
        return self.value * self.engines


def find_cap(reading: Reading, context: Context) -> SequenceCap | None:
    """The cap as given, else the ceiling that running requests touch while others wait; None without one.

    If the full command line is known, a plateau below vLLM's own default is no cap.
    """
    active, seqs = positive_int(context.setting, ACTIVE), positive_int(context.setting, SEQS)
    count = count_engines(context.setting, reading)
    each = f" for each of {count} engines" if count > 1 else ""
    if active is not None and active <= (seqs or active) and has_active_cap(reading, context):
        return SequenceCap(knob=ACTIVE, value=active, origin=f"{ACTIVE} is {active}{each}", engines=count)
    if seqs is not None:
        return SequenceCap(knob=SEQS, value=seqs, origin=f"{SEQS} is {seqs}{each}", engines=count)
    low, high = reading.running.low, reading.running.high
    complete = "model" in context.setting and context.setting.get("config") is None
    least = count * (find_max_num_seqs(context.setting, reading) if complete else 1)
    is_ceiling = low >= PLATEAU_RATIO * high or reading.running.at_high >= AT_CAP_RATIO
    if high >= least and is_ceiling and reading.waiting.low > 0:
        level = round(high / count)
        origin = f"a cap of {level}{each} is inferred, which running requests reach while others wait"
        return SequenceCap(knob=SEQS, value=level, origin=f"{SEQS} is not given, {origin}", engines=count)
    return None


def count_engines(setting: Setting, reading: Reading) -> int:
    """Number of engines in the reading, over all replicas: engines of a replica share a metrics page."""
    replicas = count_replicas(reading.facts)
    if any(setting.get(knob) for knob in ALONE):
        return replicas
    local = (
        positive_int(setting, "data_parallel_size_local") if setting.get("data_parallel_hybrid_lb") else None
    )
    return replicas * (local or positive_int(setting, "data_parallel_size") or 1)


def has_active_cap(reading: Reading, context: Context) -> bool:
    """True if the server has max_num_active_seqs: by its version or, if that is unknown, by its flags."""
    exists = KNOBS[ACTIVE].in_version(reading.facts.get("version"))
    return exists or (exists is None and positive_int(context.setting, ACTIVE) is not None)


def raise_cap(
    reading: Reading,
    context: Context,
    cap: SequenceCap,
    *,
    kv_target: float,
    wanted: int | None = None,
    at_most: float = inf,
) -> dict[Knob, int]:
    """Raise the cap to `wanted` sequences of all engines, or to the peak demand.

    Limited so that KV usage stays below `kv_target` in proportion, and to `at_most` of all engines. One step
    is at most three octaves, or the operator's bound. `max_num_active_seqs` rises first, up to
    `max_num_seqs`. Empty if no step is possible.
    """
    usage = reading.kv_usage.high if reading.kv_usage else 1.0
    active_bound, seqs_bound = context.bound(ACTIVE), context.bound(SEQS)
    reach = _cap_limit(context.bounds.get(cap.knob), cap.value)
    limit = min(reach, cap.value * kv_target / usage if usage > 0 else inf, at_most / cap.engines)
    wanted = ceil((find_peak_demand(reading) if wanted is None else wanted) / cap.engines)
    if cap.knob == ACTIVE and cap.value < (ceiling := find_max_num_seqs(context.setting, reading)):
        active = step_up(active_bound, current=cap.value, wanted=wanted, limit=min(limit, ceiling))
        return {} if active is None else {ACTIVE: active}
    limit = min(limit, find_token_budget(context.setting, reading))  # vLLM refuses more sequences than tokens
    seqs = step_up(seqs_bound, current=cap.value, wanted=wanted, limit=limit)
    if seqs is None:
        return {}
    if cap.knob == SEQS:
        return {SEQS: seqs}
    return {SEQS: seqs, ACTIVE: seqs} if active_bound.allows(seqs) else {}


def find_peak_demand(reading: Reading) -> int:
    """Peak of running requests plus peak of waiting requests."""
    return ceil(reading.running.high + reading.waiting.high)


def find_peak_running(reading: Reading, context: Context) -> int:
    """Peak of running requests in one engine, assuming an even spread; at least 1."""
    return max(1, ceil(reading.running.high / count_engines(context.setting, reading)))


def _cap_limit(bound: Bound | None, current: int) -> float:
    return current * 2.0 ** (bound.octaves if bound else STEP_OCTAVES)


def lower_cap(
    reading: Reading, context: Context, cap: SequenceCap | None, *, at_most: float | None = None
) -> dict[Knob, int]:
    """Lower the cap to `at_most` sequences of all engines, or to three quarters of the peak that ran.

    The cap itself may be far above what the cache holds.
    """
    peak = find_peak_running(reading, context)
    base = min(cap.value, peak) if cap else peak
    fewer = 0.75 * base if at_most is None else at_most / count_engines(context.setting, reading)
    knob = ACTIVE if has_active_cap(reading, context) else SEQS
    value = step_down(context.bound(knob), current=base, at_most=fewer, grid=BATCHES)
    if value is None or value > find_token_budget(context.setting, reading):
        return {}  # vLLM refuses more sequences than tokens
    return {knob: value}
