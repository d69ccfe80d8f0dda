"""Anytime-valid comparison of green with blue. Pure; all state is in the evidence.

Three verdicts: *worse* rolls green back, *not worse* lets the rollout continue, anything else waits.

P(false rollback in a full rollout) <= 1 %: `mean of E over the streams >= 100`, for a green that is within
the margin on each of them: a mean of e-processes is an e-process, whatever their dependence, and Ville's
inequality holds over all steps and looks. P(a green that is worse by its tolerance in any stream passes a
step) <= 5 %: each stream must reach 1/0.05 in that step, so the worse one must (intersection-union: no
correction). That holds for any tolerance that is fixed before the first count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite, log

from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.canary_evidence import CanaryEvidence, GainNeeded, Observation
from flettner.agent.domain.model import Forecast, Plan, Slo, Step
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.attainment import misses_slo
from flettner.agent.judge.canary.admissibility import UNEVEN, check_admissibility, update_recent
from flettner.agent.judge.canary.clients import log_worse, note_clients
from flettner.agent.judge.canary.evidence import FULL_WEIGHT, add_observation, log_mean
from flettner.agent.judge.canary.forecast import forecast_plan
from flettner.agent.judge.canary.gain import describe_gain
from flettner.agent.judge.canary.goodput import SURE_HARM, log_harm
from flettner.agent.judge.canary.passing import Situation, decide, with_baseline
from flettner.agent.judge.failure_modes import LEAST_CONTROL, calibration_of, count_bad, open_streams, phi_of
from flettner.agent.judge.hard_limits import count_unknown_models, count_wedged_s, find_violation
from flettner.agent.judge.wording import describe_chance, describe_counts


def note_clients_of(
    evidence: CanaryEvidence, observation: Observation, *, step: Step, slo: Slo
) -> CanaryEvidence:
    """Add a second to the counts of clients in each stream."""
    alone, calibration = step.weight >= FULL_WEIGHT, evidence.calibration
    streams = (
        note_clients(
            stream,
            observation,
            slo,
            alone=alone,
            phi=phi_of(calibration_of(calibration, stream.name, slo)),
        )
        for stream in evidence.streams
    )
    return replace(evidence, streams=tuple(streams))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnytimeJudge:
    """Judges by the margin m of the plan.

    A green that is worse by m of its requests, or by half of the baseline's bad share if that is more, does
    not pass. Proved worse by half of that it is rolled back; between the two either verdict is right. For a
    latency with an objective the limit is half of the late requests that the SLO allows, if that is more.

    Below load parity nothing is proved: such a share serves the hard limits and the warm-up. `uneven`: see
    flettner.agent.judge.canary.admissibility.
    """

    alpha: float = 0.01
    beta: float = 0.05
    uneven: float = UNEVEN

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if not isfinite(value) or not 0 < value < 1:
                raise ValueError(f"{option.name} must lie between 0 and 1, not {value}")

    def update(
        self,
        evidence: CanaryEvidence,
        *,
        step: Step,
        slo: Slo,
        observation: Observation,
        green: RequestCounts,
        blue: RequestCounts,
        baseline: RequestCounts,
    ) -> tuple[CanaryEvidence, Verdict]:
        """See domain.verdict.Judge. `green`, `blue`: counts of the step including this second."""
        evidence = replace(
            count_unknown_models(update_recent(evidence, observation), observation),
            at=observation.at,
            wedged_s=count_wedged_s(evidence, observation),
        )
        control = baseline + blue
        streams = open_streams(evidence, step=step, slo=slo, control=control, margin=evidence.margin)
        evidence = note_clients_of(replace(evidence, streams=streams), observation, step=step, slo=slo)
        bad = max((count_bad(green, s.name, s.edge_s, slo)[1] for s in evidence.streams), default=0)
        beside = step.weight < FULL_WEIGHT and blue.total >= LEAST_CONTROL
        control = blue if beside else baseline
        why = find_violation(evidence, observation, slo=slo, green=green, control=control, alone=not beside)
        if why:
            return evidence, Verdict(kind="fail", why=f"green is worse: {why}", bad=bad)
        missed = misses_slo(evidence.calibration, slo, baseline)
        hold = check_admissibility(
            evidence,
            observation,
            step=step,
            baseline=baseline,
            alone=step.weight >= FULL_WEIGHT,
            missed=missed,
            uneven=self.uneven,
        )
        if hold.all:
            evidence = replace(evidence, held_s=evidence.held_s + 1.0)
            return evidence, Verdict(kind="inadmissible", why=hold.all, bad=bad)
        evidence = replace(evidence, held_s=0.0)
        evidence = add_observation(
            evidence, observation, step=step, slo=slo, green=green, baseline=baseline, hold=hold
        )
        now = Situation(
            evidence=evidence,
            step=step,
            slo=slo,
            green=green,
            blue=blue,
            baseline=baseline,
            missed=missed,
            hold=hold,
            beta=self.beta,
        )
        evidence, verdict = self._decide(now)
        return evidence, replace(verdict, bad=bad)

    def _decide(self, now: Situation) -> tuple[CanaryEvidence, Verdict]:
        """The verdict on a second that counts."""
        evidence = now.evidence
        if log_mean(evidence, now.slo) >= log(1 / self.alpha):
            worst = max(evidence.streams, key=log_worse)
            why = f"{describe_counts(worst)}; {describe_chance(log_worse(worst), worst.margin)}"
            return evidence, Verdict(kind="fail", why=f"green is worse: {why}")
        if log_harm(evidence.goodput) >= SURE_HARM:
            return evidence, Verdict(kind="fail", why=f"green is worse: {with_baseline(now)}")
        return decide(now)

    def forecast(
        self,
        plan: Plan,
        *,
        slo: Slo,
        recent: RequestCounts,
        rate_rps: float | None,
        calibration: Mapping[str, Calibration],
        gain_needed: GainNeeded = "never",
    ) -> Forecast | None:
        """See flettner.agent.judge.canary.forecast."""
        return forecast_plan(
            plan,
            slo=slo,
            recent=recent,
            rate_rps=rate_rps,
            calibration=calibration,
            beta=self.beta,
            gain_needed=gain_needed,
        )

    def gain(
        self,
        evidence: CanaryEvidence,
        *,
        slo: Slo,
        level: tuple[RequestCounts, RequestCounts],
        green: RequestCounts,
        baseline: RequestCounts,
    ) -> str:
        """See flettner.agent.judge.canary.gain."""
        if evidence.better or evidence.gain:
            return evidence.better or evidence.gain
        if misses_slo(evidence.calibration, slo, baseline):
            return ""  # only a gain under full load counts, which the evidence would hold
        return describe_gain(evidence, slo=slo, level=level, green=green, baseline=baseline)
