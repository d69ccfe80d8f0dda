"""Rule Q5: fewer sequences at once where a large batch alone makes the tokens late."""

from agent.domain.lateness import late_share, misses_objective
from agent.domain.model import Proposal
from agent.domain.ports import Context
from agent.domain.reading import Reading
from policies.shared.causes import MOST_COST, find_misses
from policies.shared.sequence_cap import ACTIVE, SEQS, find_cap
from policies.shared.sequence_demand import most_sequences_in_time
from policies.shared.signals import build_evidence
from policies.shared.step_grid import step_down, was_reversed_recently
from policies.shared.token_budget import step_in_time

LEAST_BUDGET = 256  # tokens: no smaller budget is worth its loss
HALF = 0.5  # of the running sequences, at least: the cost of a sequence is an estimate
FEWER = 0.9  # of the running sequences: a smaller cut is not worth a change


def lower_for_tokens(
    reading: Reading, context: Context, *, requests: int, settle_s: float
) -> Proposal | None:
    """Lower the cap to the batch whose steps are in time.

    Only while nothing waits, and where the time to the first token and the duration are promised, only if the
    smaller batch still serves all that arrive: N sequences give N / gap tokens a second.
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
    most = most_sequences_in_time(reading, context)
    tokens = (work.arrivals_per_s or 0.0) * (work.answer_tokens or 0.0)
    promised = context.slo.ttft is not None or context.slo.e2e is not None
    if most > FEWER * reading.running.mean or (promised and most / objective.under_s < tokens):
        return None
    knob, wanted = cap.knob, max(most, HALF * reading.running.mean)
    value = step_down(context.bounds.get(knob), current=cap.value, at_most=wanted / cap.engines)
    turned = was_reversed_recently(reading, context, (SEQS, ACTIVE), upwards=False, settle_s=settle_s)
    if value is None or turned or value > reading.running.mean:
        return None
    return Proposal(
        rule="Q5",
        to={knob: value},
        assumed={knob: cap.value},
        why=(
            f"{late_share(itl):.0%} of the requests had ITL above {objective.under_s:g} s, "
            f"{shares.decode:.0%} of the excess in steps without prompts, while {reading.running.mean:.1f} "
            f"ran ({cap.origin}): lower to {knob} {value}"
        ),
        expects="smaller batches have shorter steps: ITL falls; some requests wait for their start",
        risks="a queue: TTFT rises, and throughput falls",
        source="rulebook Q5; vLLM optimization guide",
        evidence=build_evidence(reading, ("itl_decode_share", shares.decode, "ratio")),
        mitigation=True,
    )
