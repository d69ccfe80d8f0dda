"""The judge's evidence for green against blue in one canary, small enough for the journal."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, NamedTuple

from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.reading import EngineLiveness
from flettner.agent.domain.request_counts import RequestCounts


class Counts(NamedTuple):
    """Requests of both sides by one measure, and the bad ones of them. The control is blue."""

    control: int = 0
    control_bad: int = 0
    green: int = 0
    green_bad: int = 0

    def plus(self, other: "Counts") -> "Counts":
        a, b, c, d = other
        return Counts(self.control + a, self.control_bad + b, self.green + c, self.green_bad + d)

    def minus(self, other: "Counts") -> "Counts":
        a, b, c, d = other
        return Counts(self.control - a, self.control_bad - b, self.green - c, self.green_bad - d)


NO_COUNTS = Counts()


class UnknownModel(NamedTuple):
    """Requests for a model of blue's that a side answered with 404, as one that it does not serve."""

    green: int = 0
    blue: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EProcessPair:
    """Two e-processes over the same counts: whether a share of bad requests is above or below a limit.

    The value that holds the pair says whose share it is, and what follows from it. Natural logarithms.
    """

    above: tuple[float, ...] = ()  # by alternative, since the first start
    starts: tuple[float, ...] = ()  # the sum over start times of weight / `above` at that time
    started: int = 0  # number of start times so far
    below: tuple[float, float, float] = (0.0, 0.0, 0.0)  # by alternative, since the step began
    control: float = 0.0  # the control's requests, decaying
    control_bad: float = 0.0  # the control's bad requests, decaying
    log_above: float = 0.0  # of the mixture over starts and alternatives, now
    most_below: float = 0.0  # maximum since the step began: a proof stays valid

    def without_below(self) -> "EProcessPair":
        return replace(self, below=(0.0, 0.0, 0.0), most_below=0.0)

    def with_below_of(self, other: "EProcessPair") -> "EProcessPair":
        return replace(self, below=other.below, most_below=other.most_below)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceStream:
    """The evidence on one failure mode: `errors`, `stalled`, `gave_up`, `refused`, `ttft`, `itl`, `e2e`.

    Its pairs are about green's share: above the control's green is worse, below it green is not worse.
    `without`: the same evidence without the requests of one group of clients, by group, of the groups that
    had any; see flettner.agent.judge.canary.clients.
    """

    name: str
    edge_s: float | None = None  # a latency above it is bad
    promised: float | None = None  # bad share that the SLO allows
    usual: float = 0.0  # the control's bad share before the canary
    margin: float = 0.005  # proved worse by more than this, green is rolled back
    tolerance: float = 0.01  # worse by this or more, green passes with a chance of at most 1 in 20
    requests: EProcessPair = field(default_factory=EProcessPair)
    ticks: EProcessPair | None = None  # over servers' ticks; None without a calibration
    pending: Counts = NO_COUNTS  # of the open tick
    wide: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """(requests, bad) of the open wide tick, by server."""
    counted: Counts = NO_COUNTS  # of this step
    without: Mapping[str, "EvidenceStream"] = field(default_factory=dict)
    clients: Mapping[str, Counts] = field(default_factory=dict)  # of each group in this step, all seconds
    effect: float = 1.0  # by how much the groups differ beyond chance: a design effect, on that of `phi`
    set_aside: str = ""  # the group that is not judged: all evidence against green came from it

    def next_step(self) -> "EvidenceStream":
        return replace(
            self,
            requests=self.requests.without_below(),
            ticks=self.ticks.without_below() if self.ticks else None,
            pending=NO_COUNTS,
            wide={},
            counted=NO_COUNTS,
            without={group: stream.next_step() for group, stream in self.without.items()},
            clients={},
        )

    def resumed(self) -> "EvidenceStream":
        """Drop the open ticks."""
        without = {group: stream.resumed() for group, stream in self.without.items()}
        return replace(self, pending=NO_COUNTS, wide={}, without=without)


@dataclass(frozen=True, slots=True, kw_only=True)
class GainBeside:
    """Evidence on a gain over the blue of the same seconds. Blue's share is tested, green is its control."""

    of_blue: EProcessPair = field(default_factory=EProcessPair)

    @property
    def log_better(self) -> float:
        """That green is better: blue's share is above green's."""
        return self.of_blue.log_above

    @property
    def no_gain(self) -> tuple[float, float, float]:
        """That green is not better by the least gain, by alternative."""
        return self.of_blue.below


@dataclass(frozen=True, slots=True, kw_only=True)
class GainOverBaseline:
    """Evidence on a gain over blue's baseline, at a load that allows the comparison.

    While blue drains, or serves on the same card, green is slower than it will be, so nothing counts against
    a gain then. `since_drained`: the same without these seconds; None if there were none.
    """

    of_green: EProcessPair = field(default_factory=EProcessPair)
    since_drained: EProcessPair | None = None

    @property
    def better(self) -> tuple[tuple[float, float, float], ...]:
        """That green is better, now, by alternative: a queue may still grow."""
        return tuple(pair.below for pair in (self.of_green, self.since_drained) if pair is not None)

    @property
    def most_better(self) -> float:
        """The maximum of this step."""
        return self.of_green.most_below

    @property
    def log_no_gain(self) -> float:
        """That green is not better by the least gain."""
        return self.of_green.log_above


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmEvidence:
    """Evidence that a green that serves alone is worse than blue's baseline."""

    of_green: EProcessPair = field(default_factory=EProcessPair)

    @property
    def log_harm(self) -> float:
        return self.of_green.log_above


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The evidence of this step on the share of requests that fail or miss an objective.

    `without`: as in EvidenceStream.
    """

    beside: GainBeside = field(default_factory=GainBeside)
    baseline: GainOverBaseline = field(default_factory=GainOverBaseline)
    harm: HarmEvidence = field(default_factory=HarmEvidence)
    pending: Counts = NO_COUNTS  # of the open tick
    counted: Counts = NO_COUNTS
    futile_s: float = 0.0  # for how long the evidence against a gain has been sufficient
    looked: bool = False  # a healthy blue's green was compared with it once, for a gain in any measure
    without: Mapping[str, "Goodput"] = field(default_factory=dict)

    def resumed(self) -> "Goodput":
        without = {group: goodput.resumed() for group, goodput in self.without.items()}
        return replace(self, pending=NO_COUNTS, without=without)


GainNeeded = Literal["always", "if_missed", "never"]
"""Whether green must be better: `if_missed`, only where blue's baseline misses the SLO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryEvidence:
    """`valid_s`, `all_s`: admissible seconds of this step, of all steps."""

    calibration: Mapping[str, Calibration] = field(default_factory=dict)  # frozen when the rollout starts
    at: datetime | None = None  # of the last second
    margin: float = 0.01  # a green that is worse by this share of requests or more must not pass
    gain_needed: GainNeeded = "never"
    shares_card: bool = False  # green and blue run on the same GPUs: beside each other both are slower
    promised_only: bool = False  # a latency without an objective is not judged
    holding: bool = False  # the step is the hold step
    better: str = ""  # in what green was proved better, at a load that counts: no other proof is required
    gain: str = ""  # the measure by which it was better, at equal load
    goodput: Goodput = field(default_factory=Goodput)
    missed: tuple[float, float] = (0.0, 0.0)  # decaying: blue's bad requests by goodput, blue's requests
    streams: tuple[EvidenceStream, ...] = ()
    tick_s: float = 0.0
    against: bool = True  # whether late requests of the open tick count against green
    draining: bool = False  # whether green is slower than it will be: blue drains beside it, or on its card
    drained_s: float = 0.0  # seconds of this step in which green had the hardware to itself
    wide_s: float = 0.0
    valid_s: float = 0.0
    all_s: float = 0.0
    settled_s: float = 0.0  # of this step, not counted: quick answers come first and would bias latencies
    held_s: float = 0.0  # inadmissible seconds without interruption until now
    asked: tuple[float, float] = (0.0, 0.0)  # decaying requests of blue, of green
    asked_s: float = 0.0  # decaying seconds of `asked`
    baseline_s: float = 0.0  # duration of blue's baseline
    blue_failed: tuple[float, float] = (0.0, 0.0)  # decaying: blue's failed or stalled requests, all of them
    blue_failed_of: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Those of `blue_failed` that a group of clients pinned to blue, by group."""
    prefixes: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Decaying counts of the prefix cache: blue's hits and queries, green's hits and queries."""
    unknown_models: Mapping[str, UnknownModel] = field(default_factory=dict)  # since green's first share
    lacking: Mapping[str, datetime] = field(default_factory=dict)  # adapters that green lacked first then
    wedged_s: float = 0.0  # for how long green has run requests without a token

    def next_step(self, *, holding: bool = False) -> "CanaryEvidence":
        """Begin a step: evidence that green is worse stays; evidence that it is not starts from zero."""
        return replace(
            self,
            holding=holding,
            streams=tuple(stream.next_step() for stream in self.streams),
            goodput=Goodput(),
            tick_s=0.0,
            against=True,
            draining=False,
            drained_s=0.0,
            wide_s=0.0,
            valid_s=0.0,
            settled_s=0.0,
            held_s=0.0,
            asked=(0.0, 0.0),
            asked_s=0.0,
        )

    def resumed(self) -> "CanaryEvidence":
        """Continue the step after a restart: the evidence stays, open ticks are dropped."""
        return replace(
            self,
            streams=tuple(stream.resumed() for stream in self.streams),
            goodput=self.goodput.resumed(),
            tick_s=0.0,
            wide_s=0.0,
            held_s=0.0,
            asked=(0.0, 0.0),
            asked_s=0.0,
        )


GREEN = ""  # in place of a server's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The counts and metrics of one second."""

    at: datetime
    green: RequestCounts = field(default_factory=RequestCounts)
    blue: Mapping[str, RequestCounts] = field(default_factory=dict)  # by server
    green_engine: EngineLiveness | None = None
    blue_engine: EngineLiveness | None = None
    blind: str = ""  # why requests cannot be counted; empty if they can
    unknown_models: Mapping[str, UnknownModel] = field(default_factory=dict)  # by name
    lacking: frozenset[str] = frozenset()  # adapters of blue's that green is to load yet
    clients: Mapping[str, Mapping[str, RequestCounts]] = field(default_factory=dict)
    """By group of clients and server: requests whose side the client chose."""

    @property
    def arms(self) -> Mapping[str, RequestCounts]:
        """All servers, green as GREEN."""
        return {**self.blue, GREEN: self.green}
