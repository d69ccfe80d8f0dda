"""The judge's evidence for green against blue in one rollout, small enough for the journal."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.reading import EngineLiveness
from flettner.agent.domain.request_counts import RequestCounts

Counts = tuple[int, int, int, int]
"""Requests and bad requests of the control, requests and bad requests of green."""

NONE: Counts = (0, 0, 0, 0)


def add_counts(one: Counts, other: Counts) -> Counts:
    a, b, c, d = (x + y for x, y in zip(one, other, strict=True))
    return a, b, c, d


@dataclass(frozen=True, slots=True, kw_only=True)
class EProcessPair:
    """One e-process for 'worse' and one for 'not worse', over the same counts. Natural logarithms."""

    worse: tuple[float, ...] = ()  # by alternative, since the first start
    starts: tuple[float, ...] = ()  # the sum over start times of weight / `worse` at that time
    started: int = 0  # number of start times so far
    good: tuple[float, float, float] = (0.0, 0.0, 0.0)  # since the step began
    bad: float = 0.0  # the control's bad requests, decaying
    of: float = 0.0  # the control's requests, decaying
    log_worse: float = 0.0  # of the mixture over starts and alternatives, now
    most_good: float = 0.0  # maximum since the step began: a proof stays valid


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceStream:
    """The evidence on one failure mode: `errors`, `stalled`, `gave_up`, `refused`, `ttft`, `itl`, `e2e`."""

    name: str
    edge_s: float | None = None  # a latency above it is bad
    promised: float | None = None  # bad share that the SLO allows
    usual: float = 0.0  # the control's bad share before the canary
    margin: float = 0.005  # proved worse by more than this, green is rolled back
    tolerance: float = 0.01  # worse by this or more, green passes with a chance of at most 1 in 20
    requests: EProcessPair = field(default_factory=EProcessPair)
    ticks: EProcessPair | None = None  # over servers' ticks; None without a calibration
    pending: Counts = NONE  # of the open tick
    wide: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """(requests, bad) of the open wide tick, by server."""
    counted: Counts = NONE  # of this step


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The evidence of this step on the share of requests that fail or miss an objective.

    `beside`: with the roles swapped, so `worse` says that blue is worse than green, and `good` that it is not
    by the least gain. `record`: against the baseline; `good` says that green is better, `worse` that it is
    not by the least gain. `harm`: against the baseline; `worse` says that green is worse.
    """

    beside: EProcessPair = field(default_factory=EProcessPair)
    record: EProcessPair = field(default_factory=EProcessPair)
    harm: EProcessPair = field(default_factory=EProcessPair)
    pending: Counts = NONE  # of the open tick
    counted: Counts = NONE
    futile_s: float = 0.0  # for how long the evidence against a gain has been sufficient
    looked: bool = False  # a healthy blue's green was compared with it once, for a gain in any measure


GainNeeded = Literal["always", "if_missed", "never"]
"""Whether green must be better: `if_missed`, only where blue's baseline misses the SLO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """`valid_s`, `all_s`: admissible seconds of this step, of all steps."""

    calibration: Mapping[str, Calibration] = field(default_factory=dict)  # frozen when the rollout starts
    at: datetime | None = None  # of the last second
    margin: float = 0.01  # a green that is worse by this share of requests or more must not pass
    gain_needed: GainNeeded = "never"
    holding: bool = False  # the step is the hold step
    better: str = ""  # in what green was proved better, at a load that counts: no other proof is required
    gain: str = ""  # in what it was measurably better, at equal load
    goodput: Goodput = field(default_factory=Goodput)
    missed: tuple[float, float] = (0.0, 0.0)  # decaying: blue's bad requests by goodput, blue's requests
    streams: tuple[EvidenceStream, ...] = ()
    tick_s: float = 0.0
    wide_s: float = 0.0
    valid_s: float = 0.0
    all_s: float = 0.0
    settled_s: float = 0.0  # of this step, not counted: quick answers come first and would bias latencies
    held_s: float = 0.0  # inadmissible seconds without interruption until now
    asked: tuple[float, float] = (0.0, 0.0)  # decaying requests of blue, of green
    asked_s: float = 0.0  # decaying seconds of `asked`
    record_s: float = 0.0  # duration of blue's baseline
    blue_failed: tuple[float, float] = (0.0, 0.0)  # decaying: blue's failed or stalled requests, all of them
    prefixes: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Decaying counts of the prefix cache: blue's hits and queries, green's hits and queries."""
    wedged_s: float = 0.0  # for how long green has run requests without a token

    def next_step(self, *, holding: bool = False) -> "Trial":
        """Begin a step: evidence that green is worse stays; evidence that it is not starts from zero."""
        return replace(
            self,
            holding=holding,
            streams=tuple(_begin_step(stream) for stream in self.streams),
            goodput=Goodput(),
            tick_s=0.0,
            wide_s=0.0,
            valid_s=0.0,
            settled_s=0.0,
            held_s=0.0,
            asked=(0.0, 0.0),
            asked_s=0.0,
        )

    def resumed(self) -> "Trial":
        """Continue the step after a restart: the evidence stays, open ticks are dropped."""
        streams = tuple(replace(stream, pending=NONE, wide={}) for stream in self.streams)
        fresh = replace(self, streams=streams, tick_s=0.0, wide_s=0.0, held_s=0.0)
        fresh = replace(fresh, goodput=replace(self.goodput, pending=NONE))
        return replace(fresh, asked=(0.0, 0.0), asked_s=0.0)


def _begin_step(stream: EvidenceStream) -> EvidenceStream:
    return replace(
        stream,
        requests=_without_not_worse(stream.requests),
        ticks=_without_not_worse(stream.ticks) if stream.ticks else None,
        pending=NONE,
        wide={},
        counted=NONE,
    )


def _without_not_worse(pair: EProcessPair) -> EProcessPair:
    return replace(pair, good=(0.0, 0.0, 0.0), most_good=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The counts and metrics of one second."""

    at: datetime
    green: RequestCounts = field(default_factory=RequestCounts)
    blue: Mapping[str, RequestCounts] = field(default_factory=dict)  # by server
    green_engine: EngineLiveness | None = None
    blue_engine: EngineLiveness | None = None
    blind: str = ""  # why requests cannot be counted; empty if they can
