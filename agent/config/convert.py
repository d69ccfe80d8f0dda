"""From the tables of the config file to the terms of the core: objectives, bounds, plans."""

from collections.abc import Iterator, Mapping

from agent.audit.segments import RetentionLimits
from agent.config.tables import AuditTable, BoundTable, ObjectiveTable, RolloutTable, SloTable
from agent.domain.model import Bound, Objective, Plan, Slo, Step
from vllm_facts.values import Knob

BOUNDS: Mapping[Knob, Bound] = {
    "max_num_seqs": Bound(min=1, max=1024, octaves=3),  # raised to a demand that already waits: no guess
    "max_num_active_seqs": Bound(min=1, max=1024, octaves=3),
    "max_num_batched_tokens": Bound(min=256, max=32768),
    "gpu_memory_utilization": Bound(min=0.5, max=0.92),
    "watermark": Bound(min=0.0, max=0.1),
}
"""In force where the file says nothing about a knob; a key that it leaves out of its table stays as here."""


def slo(table: SloTable) -> Slo:
    return Slo(
        ttft=_objective(table.ttft),
        itl=_objective(table.itl),
        e2e=_objective(table.e2e),
        errors=table.errors.share,
    )


def _objective(table: ObjectiveTable | None) -> Objective | None:
    return None if table is None else Objective(under_s=table.under, share=table.share)


def limits(table: AuditTable) -> RetentionLimits:
    return RetentionLimits(
        segment_bytes=table.segment_mb * 2**20,
        segment_s=table.segment_age,
        keep_s=table.keep,
        keep_bytes=table.keep_mb * 2**20,
    )


def bound(knob: Knob, table: BoundTable) -> Bound:
    default = BOUNDS.get(knob, Bound())
    return Bound(
        min=default.min if table.min is None else table.min,
        max=default.max if table.max is None else table.max,
        allowed=tuple(_grid(table)) if table.step else table.allowed,
        octaves=default.octaves if table.octaves is None else table.octaves,
    )


def _grid(table: BoundTable) -> Iterator[float]:
    """min, min + step, ... up to max; whole where all three are."""
    if table.min is None or table.max is None or table.step is None:
        return
    whole = all(number.is_integer() for number in (table.min, table.max, table.step))
    for i in range(int((table.max - table.min) / table.step + 1e-9) + 1):
        value = round(table.min + i * table.step, 9)
        yield int(value) if whole else value


def plan(table: RolloutTable) -> Plan:
    hold_at_most_s = table.hold_at_most or max(4 * table.hold, table.hold + 3600)
    hold = Step(weight=100, requests=table.hold_requests, at_least_s=table.hold, at_most_s=hold_at_most_s)
    steps = (
        Step(weight=step.weight, requests=step.requests, at_least_s=step.at_least, at_most_s=step.at_most)
        for step in table.steps
    )
    return Plan(
        steps=(*steps, hold),
        start_s=table.start,
        warm_up_requests=table.warm_up_requests,
        warm_up_s=table.warm_up,
        drain_s=table.drain,
        lease_s=table.lease,
        margin=table.margin,
        gain_needed=table.gain_needed,
    )
