"""The judge of a canary, as the machine sees it: its input of each second, and its verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.canary_evidence import CanaryEvidence, GainNeeded, Observation
from flettner.agent.domain.model import Forecast, Plan, Slo, Step
from flettner.agent.domain.request_counts import RequestCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`fail`: green is proved worse. `pass`: better, or not worse, as the step requires. `wait`: neither yet.
    `futile`: the gain that the change needs cannot be expected any more. `inadmissible`: this second's data
    proves nothing."""

    kind: Literal["pass", "fail", "wait", "futile", "inadmissible"]
    why: str
    waits: str = ""  # what a pass still lacks, each with its evidence
    lacks_proof_of: tuple[str, ...] = ()  # streams; a pass lacks nothing else
    lacks_gain: bool = False  # the gain that is needed could have shown, and did not
    bad: int = 0  # green's requests of this step that failed or were late by the judge's edges


class Judge(Protocol):
    """Compares green with blue. Pure: all state is in the evidence, which is journalled."""

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
        """Add one second of a step to the evidence; return it with the verdict.

        `green`, `blue`: counts of this step including this second. `baseline`: blue alone under
        full load before the canary.
        """
        ...

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
        """How long the plan will take at this request rate; None: unknown.

        `recent`: blue's counts of the last minutes.
        """
        ...

    def gain(
        self,
        evidence: CanaryEvidence,
        *,
        slo: Slo,
        level: tuple[RequestCounts, RequestCounts],
        green: RequestCounts,
        baseline: RequestCounts,
    ) -> str:
        """What green is measurably better at, as a sentence with numbers; "" if nothing.

        `level`: counts of green and blue at equal load, at the same time; `green`: counts of the hold step.
        """
        ...
