"""The judge of a time-split trial: one server, two sets of limits that take turns. Pure.

The unit of evidence is the block (agent/judge/blocks/evidence.py). Four results as for a canary:
`fail` at 100 to 1 that the candidate is worse, or past a hard limit; `pass` at 20 to 1 that it is better, or,
where no gain is needed, not worse by the margin; `futile` at 50 to 1 that the gain that it needs is ruled
out; `wait`. The time limit is the machine's, as for a step of a canary.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import log

from flettner.agent.domain.blocks import Block, BlockMeasure, BlockSecond, BlockTrial
from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.canary_evidence import GainNeeded
from flettner.agent.domain.model import Slo
from flettner.agent.domain.request_counts import RequestCounts, quantile
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.attainment import count_missed, least_gain, misses_slo
from flettner.agent.judge.blocks.counting import (
    CUT_REQUESTS,
    GOODPUT,
    add_second,
    count_measure,
    drop_blocks,
    take_finished,
)
from flettner.agent.judge.blocks.evidence import add_block, level_of, log_evidence
from flettner.agent.judge.eprocess import log_sum
from flettner.agent.judge.failure_modes import DISASTER, LATENCIES, LEAST_CONTROL, UNPROMISED, objective_of
from flettner.agent.judge.hard_limits import BAD, CONTROL_BAD, FRESH_S, WEDGED_S, is_fresh
from flettner.agent.judge.wording import describe_odds

SURE_WORSE, SURE_BETTER, SURE_FUTILE = log(100.0), log(20.0), log(50.0)
LOOKS_WORSE = log(10.0)
ERRORS = 1  # place of the measure `errors`, which only the hard limit uses
BASELINE_COUNTS = 40  # requests that the baseline counts as, about those of a block
NEARLY_ALL = 0.65  # a block has some requests that began under the other arm
LEAST_OF_BLOCK = 10  # requests
ALARMS = 2  # blocks
OF_GOODPUT = 0.8  # weight of goodput in the evidence for a gain, where a latency is promised


def begin_blocks(
    seed: str,
    *,
    slo: Slo,
    baseline: RequestCounts,
    gain_needed: GainNeeded,
    baseline_s: float = 0.0,
    margin: float = 0.01,
    calibration: Mapping[str, Calibration] | None = None,
) -> BlockTrial:
    """`seed`: the rollout's id. `baseline`: counts under the present values, in the last `baseline_s`."""
    of, bad = count_missed(baseline)
    return BlockTrial(
        seed=seed,
        gain_needed=gain_needed,
        missed=misses_slo(calibration or {}, slo, baseline),
        usual=bad / of if of else 0.0,
        usual_rps=baseline.asked / baseline_s if baseline_s else 0.0,
        least_gain=least_gain(baseline),
        margin=margin,
        measures=tuple(_with_baseline(measure, slo, baseline) for measure in _measures(slo, baseline)),
    )


def _measures(slo: Slo, baseline: RequestCounts) -> Iterator[BlockMeasure]:
    """Goodput; a latency without an objective, if it gets far worse; a latency that gets clearly better."""
    harms = [
        BlockMeasure(name=name, edge_s=UNPROMISED * usual_s, margin=DISASTER)
        for name in LATENCIES
        if name != "itl" and objective_of(slo, name) is None and (usual_s := _quantile(baseline, name, 0.9))
    ]
    gains = [
        BlockMeasure(name=name, edge_s=middle_s, margin=DISASTER)
        for name in LATENCIES
        if (middle_s := _quantile(baseline, name, 0.5))
    ]
    promised = any(objective_of(slo, name) for name in LATENCIES)
    of_goodput = 1.0 if not gains else OF_GOODPUT if promised else 1 / (1 + len(gains))
    yield BlockMeasure(name=GOODPUT, harm=1 / (1 + len(harms)), gain=of_goodput)
    yield BlockMeasure(name="errors")
    yield from (replace(measure, harm=1 / (1 + len(harms))) for measure in harms)
    yield from (replace(measure, gain=(1 - of_goodput) / len(gains)) for measure in gains)


def _with_baseline(measure: BlockMeasure, slo: Slo, baseline: RequestCounts) -> BlockMeasure:
    of, bad = count_measure(baseline, measure, slo)
    scale = min(1.0, BASELINE_COUNTS / of) if of else 0.0
    return replace(measure, levels={"present": (round(scale * of, 3), round(scale * bad, 3))} if of else {})


def _quantile(baseline: RequestCounts, name: str, share: float) -> float | None:
    histogram: tuple[int, ...] = getattr(baseline, name)
    return quantile(histogram, share) if sum(histogram) >= LEAST_CONTROL else None


def update_blocks(trial: BlockTrial, second: BlockSecond, *, slo: Slo) -> tuple[BlockTrial, Verdict]:
    """Add one second; then `trial.arm` is the arm that shall be on."""
    trial = replace(trial, wedged_s=_wedged_s(trial, second))
    if any(engine.restarted for engine in second.engines):
        return trial, Verdict(kind="fail", why="the server exited and was started again by something else")
    if why := _inadmissible(second):
        return replace(drop_blocks(trial), held_s=trial.held_s + 1.0), Verdict(kind="inadmissible", why=why)
    trial = add_second(replace(trial, held_s=0.0), second, slo)
    if why := _violation(trial):
        return trial, Verdict(kind="fail", why=f"the candidate is worse: {why}")
    trial, finished = take_finished(trial)
    if finished:
        trial = _add_evidence(trial, finished)
    return trial, _decide(trial)


def _inadmissible(second: BlockSecond) -> str:
    if second.blind:
        return f"requests cannot be counted: {second.blind}"
    if not second.engines or not all(map(is_fresh, second.engines)):
        return "the metrics of a server cannot be read"
    return ""


def _wedged_s(trial: BlockTrial, second: BlockSecond) -> float:
    if trial.arm == "present" or any(engine.age_s > FRESH_S for engine in second.engines):
        return 0.0
    stands = any(engine.running > 0 and engine.tokens == 0 for engine in second.engines)
    return trial.wedged_s + 1.0 if stands else 0.0


def _violation(trial: BlockTrial) -> str:
    """Limits outside the statistics."""
    if trial.wedged_s >= WEDGED_S:
        return f"it has run requests for {trial.wedged_s:.0f} s without producing a token"
    was_of, was_failed = trial.measures[ERRORS].levels.get("present", (0.0, 0.0))
    for block in trial.blocks:
        of, failed = block.counts[ERRORS] if block.counts else (0, 0)
        many = of >= CUT_REQUESTS and failed >= BAD * of
        if block.arm == "candidate" and many and was_failed < CONTROL_BAD * was_of:
            before = f"{was_failed:.0f} of {was_of:.0f} under the present values"
            return f"{failed:.0f} of its last {of:.0f} requests failed, {before}"
    return ""


def _add_evidence(trial: BlockTrial, block: Block) -> BlockTrial:
    """A rest, or a block without requests, shows nothing."""
    if block.rest or not block.counts or not block.counts[0][0]:
        return trial
    measures = tuple(
        add_block(
            measure,
            block,
            counts,
            tolerance=max(trial.margin, measure.margin),
            gain=trial.least_gain if measure.name == GOODPUT else 2 * measure.margin,
        )
        for measure, counts in zip(trial.measures, block.counts, strict=True)
    )
    trial = note_result(replace(trial, measures=measures, results=trial.results + 1), block)
    of, bad = block.counts[0]
    if block.arm == "candidate":
        return replace(trial, candidate=(trial.candidate[0] + of, trial.candidate[1] + bad))
    return replace(trial, present=(trial.present[0] + of, trial.present[1] + bad))


def note_result(trial: BlockTrial, block: Block) -> BlockTrial:
    """Add a finished block that is no rest."""
    of, bad = block.counts[0]
    if of < LEAST_OF_BLOCK or block.crowded:
        return trial
    if block.arm == "candidate":
        return replace(trial, alarms=trial.alarms + (bad >= NEARLY_ALL * of))
    return replace(trial, spared=trial.spared or (trial.alarms > 0 and bad < CONTROL_BAD * of))


def is_harmful(trial: BlockTrial) -> bool:
    (of, bad), (was_of, was_bad) = trial.candidate, trial.present
    throughout = bad >= NEARLY_ALL * of and was_bad < CONTROL_BAD * was_of
    return trial.usual < CONTROL_BAD and trial.alarms >= ALARMS and trial.spared and throughout


def log_worse(trial: BlockTrial) -> float:
    return _weighted([(measure.harm, log_evidence(measure.evidence.worse)) for measure in trial.measures])


def log_better(trial: BlockTrial) -> float:
    return _weighted([(measure.gain, log_evidence(measure.evidence.better)) for measure in trial.measures])


def _weighted(parts: list[tuple[float, float]]) -> float:
    """The logarithm of the weighted mean of e-processes."""
    logs = [log(weight) + value for weight, value in parts if weight]
    return log_sum(logs) if logs else 0.0


def _decide(trial: BlockTrial) -> Verdict:
    bad = round(trial.candidate[1])
    if log_worse(trial) >= SURE_WORSE or is_harmful(trial):
        return Verdict(kind="fail", why=f"the candidate is worse: {describe_blocks(trial)}", bad=bad)
    gain_needed = trial.gain_needed == "always" or (trial.gain_needed == "if_missed" and trial.missed)
    better = log_better(trial)
    harmful = any(
        measure.harm and log_evidence(measure.evidence.worse) > LOOKS_WORSE for measure in trial.measures
    )
    if better >= SURE_BETTER and not harmful and _was_as_good(trial):
        return Verdict(kind="pass", why=f"the candidate is better: {describe_blocks(trial)}", bad=bad)
    if gain_needed:
        ruled_out = [log_evidence(measure.evidence.no_gain) for measure in trial.measures if measure.gain]
        if ruled_out and min(ruled_out) >= SURE_FUTILE:
            why = f"a gain of {100 * trial.least_gain:.2g} points is ruled out: {describe_blocks(trial)}"
            return Verdict(kind="futile", why=why, bad=bad, lacks_gain=True)
        waits = f"evidence {describe_odds(better, SURE_BETTER)} that the candidate is better"
    else:
        shown = min(log_evidence(measure.evidence.not_worse) for measure in trial.measures if measure.harm)
        if shown >= SURE_BETTER and not harmful:
            return Verdict(kind="pass", why=f"the candidate is not worse: {describe_blocks(trial)}", bad=bad)
        waits = f"evidence {describe_odds(shown, SURE_BETTER)} that the candidate is not worse"
    return Verdict(kind="wait", why=describe_blocks(trial), waits=waits, bad=bad, lacks_gain=gain_needed)


def _was_as_good(trial: BlockTrial) -> bool:
    """Whether the candidate was as good as the present values at a load that both had.

    Blocks of one arm alone can reach the evidence, by one chance in twenty.
    """
    levels = trial.measures[0].levels
    for busy in (False, True):
        was_of, was_bad = levels.get(level_of("present", busy=busy), (0, 0))
        of, bad = levels.get(level_of("candidate", busy=busy), (0, 0))
        if of and was_of and bad / of <= was_bad / was_of + trial.margin:
            return True
    return False


def describe_blocks(trial: BlockTrial) -> str:
    """As in "12 of 340 requests failed or missed the SLO, 80 of 335 under the present values, …"."""
    (of, bad), (was_of, was_bad) = trial.candidate, trial.present
    candidate = f"{bad:,.0f} of {of:,.0f} requests failed or missed the SLO"
    return f"{candidate}, {was_bad:,} of {was_of:,} under the present values, in {trial.results} blocks"
