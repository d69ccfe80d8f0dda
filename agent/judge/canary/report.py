"""The evidence of a canary, as the API and the audit show it."""

from dataclasses import dataclass
from math import exp

from flettner.agent.domain.canary_evidence import CanaryEvidence, EvidenceStream
from flettner.agent.judge.attainment import wilson_interval
from flettner.agent.judge.canary.clients import log_not_worse, log_worse
from flettner.agent.judge.canary.goodput import describe_missed, log_better, log_better_than_baseline
from flettner.agent.judge.wording import describe_counts

MOST = 700.0  # the largest power of e that a float holds


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceReport:
    """The evidence of one stream. Intervals: Wilson 95 %, of this step's counts, for display only.

    `worse`, `not_worse`: e-values. A verdict needs 100 of the mean of `worse` over the streams, or 20 of each
    `not_worse`. `chance`: the probability of such evidence, at most, if green were not worse by the margin.
    """

    stream: str
    edge_s: float | None  # a latency above it is bad
    green_bad: int
    green_of: int
    green_interval: tuple[float, float] | None
    blue_bad: int
    blue_of: int
    blue_interval: tuple[float, float] | None
    margin: float  # proved worse by more than this share, green is rolled back
    tolerance: float  # worse by this share or more, it does not pass
    worse: float
    not_worse: float
    chance: float
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputReport:
    """The evidence on requests that fail or miss an objective. Intervals as in EvidenceReport.

    `better`: the e-value that green is better than blue beside it, or than blue's baseline; 100 is proof.
    `proof`: in what green was proved better at a load that counts; then no stream needs a proof of its own.
    """

    green_bad: int
    green_of: int
    green_interval: tuple[float, float] | None
    blue_bad: int
    blue_of: int
    blue_interval: tuple[float, float] | None
    better: float
    proof: str
    says: str


def report_goodput(evidence: CanaryEvidence) -> GoodputReport | None:
    """None before green's first request of the step."""
    goodput = evidence.goodput
    counts = goodput.counted
    if not counts.green:
        return None
    return GoodputReport(
        green_bad=counts.green_bad,
        green_of=counts.green,
        green_interval=wilson_interval(counts.green_bad, counts.green),
        blue_bad=counts.control_bad,
        blue_of=counts.control,
        blue_interval=wilson_interval(counts.control_bad, counts.control),
        better=_e_value(max(log_better(evidence), log_better_than_baseline(goodput))),
        proof=evidence.better.removeprefix("better: "),
        says=describe_missed(counts),
    )


def report_evidence(evidence: CanaryEvidence) -> tuple[EvidenceReport, ...]:
    """One report for each stream that is open."""
    return tuple(_report_stream(stream) for stream in evidence.streams)


def _report_stream(stream: EvidenceStream) -> EvidenceReport:
    counts = stream.counted
    worse = log_worse(stream)
    return EvidenceReport(
        stream=stream.name,
        edge_s=stream.edge_s,
        green_bad=counts.green_bad,
        green_of=counts.green,
        green_interval=wilson_interval(counts.green_bad, counts.green),
        blue_bad=counts.control_bad,
        blue_of=counts.control,
        blue_interval=wilson_interval(counts.control_bad, counts.control),
        margin=stream.margin,
        tolerance=stream.tolerance,
        worse=_e_value(worse),
        not_worse=_e_value(log_not_worse(stream)),
        chance=min(1.0, exp(-min(worse, MOST))),
        says=describe_counts(stream),
    )


def _e_value(log_e: float) -> float:
    return float(f"{exp(min(log_e, MOST)):.3g}")
