"""The last look at a new release, at the time limit of a step that has no verdict yet. Pure.

The evidence of a stream may be looked at in every second, and the price is that an equal green needs three
times the requests of a test with one look. At a step's time limit one look is left, and each stream is tested
over the requests of the step (n, k of them bad; Agresti and Caffo 2000, on counts over phi):

    p = (k / phi + 1) / (n / phi + 2)      u = p_green - p_blue
    s = sqrt(sum over both of p (1 - p) / (n / phi + 2))
    worse      u - 2.33 s > margin         it is rolled back as worse: so is one in 100 within the margin
    harmless   u + 1.65 s < allowed        of each stream without a proof: green passes; so does one in 20
                                           that is worse by `allowed`

`allowed` is the stream's tolerance. Of a latency it is at least blue's own share in the same requests: where
servers stall, late requests come in clumps, and within an hour nobody can tell 7 % from 10 %. So there a
green may pass that is late up to twice as often, and the verdict says how much more was not excluded.

In the hold step, where blue serves nothing, green's share is compared with the limits of the baseline.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from flettner.agent.domain.canary_evidence import CanaryEvidence, EvidenceStream
from flettner.agent.domain.model import Slo, Step
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.canary.clients import all_of
from flettner.agent.judge.canary.evidence import FULL_WEIGHT, limits_of_baseline
from flettner.agent.judge.failure_modes import LATENCIES, calibration_of, phi_of
from flettner.agent.judge.wording import describe_counts, describe_duration, describe_points

Z_WORSE, Z_HARMLESS = 2.33, 1.65


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """Shares of the requests: by how much green exceeds blue, and may exceed it."""

    difference: float
    error: float
    margin: float
    allowed: float

    @property
    def is_worse(self) -> bool:
        return self.difference - Z_WORSE * self.error > self.margin

    @property
    def not_excluded(self) -> float:
        return max(0.0, self.difference + Z_HARMLESS * self.error)


def look_at_limit(
    verdict: Verdict, evidence: CanaryEvidence, *, step: Step, slo: Slo, baseline: RequestCounts
) -> Verdict:
    """The verdict on a green that was proved neither worse nor not worse. Any other verdict stays."""
    if verdict.kind != "wait":
        return verdict
    looks = {s.name: tuple(_looks(s, evidence, step, slo, baseline)) for s in evidence.streams}
    for stream in evidence.streams:
        if all(look.is_worse for look in looks[stream.name]):
            why = f"green is worse: {describe_counts(stream)}, in {describe_duration(evidence.valid_s)}"
            return Verdict(kind="fail", why=why, bad=verdict.bad)
    unproven = [stream for stream in evidence.streams if stream.name in verdict.lacks_proof_of]
    harmless = all(look.not_excluded < look.allowed for stream in unproven for look in looks[stream.name])
    if not unproven or not harmless:
        return verdict
    seen = "; ".join(
        f"{describe_counts(stream)}, and up to {describe_points(_not_excluded(looks[stream.name]))} more "
        "than blue's are not excluded"
        for stream in unproven
    )
    why = f"no harm is seen in {describe_duration(evidence.valid_s)}: {seen}"
    return Verdict(kind="pass", why=why, bad=verdict.bad)


def _not_excluded(looks: tuple[_Look, ...]) -> float:
    return max(look.not_excluded for look in looks)


def _looks(
    stream: EvidenceStream, evidence: CanaryEvidence, step: Step, slo: Slo, baseline: RequestCounts
) -> Iterator[_Look]:
    """Of all clients, and of those without each group."""
    phi = phi_of(calibration_of(evidence.calibration, stream.name, slo)) * stream.effect
    for every in all_of(stream):
        counts = every.counted
        share, variance = _share(counts.green_bad, counts.green, phi)
        if step.weight >= FULL_WEIGHT:
            of_blue, allowed = stream.usual, _allowed(stream, stream.usual)
            above, below, _ = limits_of_baseline(every, evidence, slo, baseline, phi, tolerance=allowed)
            margin, allowed = above - of_blue, below - of_blue
        else:
            of_blue, of_control = _share(counts.control_bad, counts.control, phi)
            variance += of_control
            margin, allowed = stream.margin, _allowed(stream, of_blue)
        yield _Look(difference=share - of_blue, error=sqrt(variance), margin=margin, allowed=allowed)


def _share(bad: int, of: int, phi: float) -> tuple[float, float]:
    """The share of bad requests, and its variance."""
    share = (bad / phi + 1) / (of / phi + 2)
    return share, share * (1 - share) / (of / phi + 2)


def _allowed(stream: EvidenceStream, of_blue: float) -> float:
    return max(stream.tolerance, of_blue) if stream.name in LATENCIES else stream.tolerance
