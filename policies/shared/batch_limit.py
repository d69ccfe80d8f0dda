"""Rule Q5: fewer sequences at once where a large batch alone makes the tokens late."""

from flettner.agent.domain.lateness import late_share, misses_objective
from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.causes import MOST_COST, find_misses
from flettner.policies.shared.sequence_cap import ACTIVE, SEQS, find_cap
from flettner.policies.shared.sequence_demand import SERVED, most_sequences_in_time
from flettner.policies.shared.signals import build_evidence
from flettner.policies.shared.step_grid import BATCHES, step_down, was_reversed_recently
from flettner.policies.shared.token_budget import IN_TIME, step_in_time
from flettner.vllm_facts.references import OPTIMIZATION

LEAST_BUDGET = 256  # tokens: no smaller budget is worth its loss
FEWER = 0.9  # of the peak of running sequences: a smaller cut is not worth a change


def lower_for_tokens(
    reading: Reading, context: Context, *, requests: int, settle_s: float
) -> Proposal | None:
    """Lower the cap to the batch whose steps are in time.

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
    value = step_down(context.bounds.get(knob), current=cap.value, at_most=most / cap.engines, grid=BATCHES)
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
        source=f"{OPTIMIZATION} (max_num_seqs)",
        evidence=build_evidence(reading, ("itl_decode_share", shares.decode, "ratio")),
        mitigation=True,
    )
