"""Anytime-valid comparison of green with blue. Pure; all state is in the trial.

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
from flettner.agent.domain.model import Forecast, Plan, Slo, Step
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.trial import GainNeeded, Observation, Trial
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.canary.admissibility import UNEVEN, check_admissibility, update_recent
from flettner.agent.judge.canary.evidence import FULL_WEIGHT, add_observation, log_mean, log_worse
from flettner.agent.judge.canary.forecast import forecast_plan
from flettner.agent.judge.canary.gain import describe_gain
from flettner.agent.judge.canary.goodput import SURE_HARM, log_harm, misses_slo
from flettner.agent.judge.canary.passing import Situation, decide, with_record
from flettner.agent.judge.failure_modes import LEAST_CONTROL, count_bad, open_streams
from flettner.agent.judge.hard_limits import count_wedged_s, find_violation
from flettner.agent.judge.wording import describe_chance, describe_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class AnytimeJudge:
    """Judges by the trial's margin m.

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
        trial: Trial,
        *,
        step: Step,
        slo: Slo,
        observation: Observation,
        green: RequestCounts,
        blue: RequestCounts,
        record: RequestCounts,
    ) -> tuple[Trial, Verdict]:
        """See domain.verdict.Judge. `green`, `blue`: counts of the step including this second."""
        by_itself = step.weight >= FULL_WEIGHT and not any(arm.asked for arm in observation.blue.values())
        trial = replace(
            update_recent(trial, observation), at=observation.at, wedged_s=count_wedged_s(trial, observation)
        )
        trial = replace(
            trial,
            streams=open_streams(trial, step=step, slo=slo, control=record + blue, margin=trial.margin),
        )
        beside = step.weight < FULL_WEIGHT and blue.total >= LEAST_CONTROL
        control = blue if beside else record
        bad = max((count_bad(green, s.name, s.edge_s, slo)[1] for s in trial.streams), default=0)
        why = find_violation(trial, observation, slo=slo, green=green, control=control, alone=not beside)
        if why:
            return trial, Verdict(kind="fail", why=f"green is worse: {why}", bad=bad)
        missed = misses_slo(trial, slo, record)
        hold = check_admissibility(
            trial,
            observation,
            step=step,
            record=record,
            alone=by_itself,
            missed=missed,
            uneven=self.uneven,
        )
        if hold.all:
            trial = replace(trial, held_s=trial.held_s + 1.0)
            return trial, Verdict(kind="hold", why=hold.all, bad=bad)
        trial = add_observation(
            replace(trial, held_s=0.0),
            observation,
            step=step,
            slo=slo,
            green=green,
            record=record,
            hold=hold,
        )
        if log_mean(trial, slo) >= log(1 / self.alpha):
            worst = max(trial.streams, key=log_worse)
            evidence = f"{describe_counts(worst)}; {describe_chance(log_worse(worst), worst.margin)}"
            return trial, Verdict(kind="fail", why=f"green is worse: {evidence}", bad=bad)
        now = Situation(
            trial=trial,
            step=step,
            slo=slo,
            green=green,
            blue=blue,
            record=record,
            missed=missed,
            hold=hold,
            beta=self.beta,
        )
        if log_harm(trial.goodput) >= SURE_HARM:
            return trial, Verdict(kind="fail", why=f"green is worse: {with_record(now)}", bad=bad)
        trial, verdict = decide(now)
        return trial, replace(verdict, bad=bad)

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
        trial: Trial,
        *,
        slo: Slo,
        level: tuple[RequestCounts, RequestCounts],
        green: RequestCounts,
        record: RequestCounts,
    ) -> str:
        """See flettner.agent.judge.canary.gain."""
        if trial.better or trial.gain:
            return trial.better or trial.gain
        if misses_slo(trial, slo, record):
            return ""  # only a gain under full load counts, which the trial would hold
        return describe_gain(trial, slo=slo, level=level, green=green, record=record)
