"""What a rollout knows so far of green against blue: the judge's evidence, small enough for the journal."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from agent.domain.calibration import Calibration
from agent.domain.reading import Pulse
from agent.domain.request_counts import RequestCounts

Counts = tuple[int, int, int, int]
"""Control's requests, the bad of them, green's requests, the bad of them."""

NONE: Counts = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EProcessPair:
    """One e-process for 'worse' and one for 'not worse', over the same counts. Natural logarithms."""

    worse: tuple[float, ...] = ()  # for each alternative, since the first start
    starts: tuple[float, ...] = ()  # … the sum over start times of weight / what `worse` was then
    started: int = 0  # so many start times have been
    good: tuple[float, float, float] = (0.0, 0.0, 0.0)  # since the step began
    bad: float = 0.0  # the control's bad ones, older ones counting less
    of: float = 0.0  # … and its requests
    log_worse: float = 0.0  # of the mixture over starts and alternatives, now
    most_good: float = 0.0  # the highest since the step began: what was proved stays so


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceStream:
    """The evidence on one way to be bad: `errors`, `gave_up`, `refused`, `ttft`, `itl` or `e2e`."""

    name: str
    edge_s: float | None = None  # a latency above it is bad
    promised: float | None = None  # what the SLO allows to be bad
    usual: float = 0.0  # the control's share of bad ones before the canary
    margin: float = 0.005  # proved worse by more than this above the control's share, green goes back
    tolerance: float = 0.01  # a green that is worse by this or more does not pass, but for 1 in 20
    requests: EProcessPair = field(default_factory=EProcessPair)
    ticks: EProcessPair | None = None  # the same of servers' ticks; None: how they spread is not known
    pending: Counts = NONE  # of the tick that is not closed
    wide: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # of the wide tick: (requests, bad)
    counted: Counts = NONE  # of this step


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """`valid_s`: seconds that count, of this step and of all; those that are held do not."""

    calibration: Mapping[str, Calibration] = field(default_factory=dict)  # frozen when the rollout starts
    at: datetime | None = None  # of the last second that was heard
    margin: float = 0.01  # a green that is worse by this share of requests or more must not pass
    streams: tuple[EvidenceStream, ...] = ()
    tick_s: float = 0.0
    wide_s: float = 0.0
    valid_s: float = 0.0
    all_s: float = 0.0
    settled_s: float = 0.0  # of this step, not counted: quick answers come first and speak for no slow ones
    held_s: float = 0.0  # without a break, until now
    asked: tuple[float, float] = (0.0, 0.0)  # lately: of blue, of green
    asked_s: float = 0.0  # … and in how many seconds
    record_s: float = 0.0  # in how many seconds blue's record was taken
    blue_failed: tuple[float, float] = (0.0, 0.0)  # lately: of blue, failed and all
    prefixes: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)  # hits, queries: blue's, green's
    wedged_s: float = 0.0  # so long green runs requests and no token comes

    def next_step(self) -> "Trial":
        """Proof that green is worse stays; proof that it is not must come from the new share."""
        return replace(
            self,
            streams=tuple(_begin_step(stream) for stream in self.streams),
            tick_s=0.0,
            wide_s=0.0,
            valid_s=0.0,
            settled_s=0.0,
            held_s=0.0,
            asked=(0.0, 0.0),
            asked_s=0.0,
        )

    def resumed(self) -> "Trial":
        """The same step again: what it has stays, but for the open ticks."""
        streams = tuple(replace(stream, pending=NONE, wide={}) for stream in self.streams)
        fresh = replace(self, streams=streams, tick_s=0.0, wide_s=0.0, held_s=0.0)
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
    """What one second brought."""

    at: datetime
    green: RequestCounts = field(default_factory=RequestCounts)
    blue: Mapping[str, RequestCounts] = field(default_factory=dict)  # by server
    green_pulse: Pulse | None = None
    blue_pulse: Pulse | None = None
    blind: str = ""  # why the records cannot be counted
