"""Values that every part of the project speaks in. Nothing here does anything."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from vllm_facts.values import ChangeClass, Knob, Setting, Value

Mode = Literal["advise", "approve", "auto"]

Strategy = Literal["surge", "replace", "swap"]
"""`surge`: green comes up beside the others. `replace`: one of several servers gives its place to green, then
the others one by one. `swap`: the only server gives its place: a planned outage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One vLLM server, running or to be started."""

    name: str  # one incarnation, never reused: "chat-r3"; also Envoy's cluster name
    setting: Setting
    address: str = ""  # "127.0.0.1:8101"; empty until it is launched
    ours: bool = True  # False: somebody else started it, trimtab adopted it
    like: str = field(default="", compare=False)  # the server that it is made like, and whose place it takes
    differs: tuple[str, ...] = field(default=(), compare=False)  # from that one, a line for each field


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """`share` of the requests stay under `under_s` seconds."""

    under_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What the target promises. An objective that is None is not promised: judged for disasters only."""

    ttft: Objective | None = None
    itl: Objective | None = None  # mean gap between tokens of one request
    e2e: Objective | None = None
    errors: float = 0.999  # share of requests that are neither failed, cut nor answered `abort`


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One number a suggestion or a verdict rests on."""

    metric: str
    value: float
    unit: str
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a policy asks for: one concern, mostly one knob."""

    rule: str  # id in the rulebook: "Q1"
    to: Mapping[Knob, Value]  # only the knobs that change
    why: str  # one sentence with the numbers in it
    expects: str
    risks: str
    source: str  # who says so: rulebook row, vLLM documentation
    evidence: tuple[Evidence, ...] = ()
    assumed: Mapping[Knob, Value] = field(default_factory=dict)  # present values of knobs that are not given
    klass: ChangeClass = "auto"
    mitigation: bool = False  # answers a problem of now: need only be not worse


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightResult:
    """What the engine says of a change before anything is touched."""

    problem: str = ""  # why it cannot be done, with the fix; empty: it can
    lasting: bool = False  # the problem lies in the values themselves: they are not asked again
    strategy: Strategy = "surge"
    why: str = ""  # why this strategy
    start_s: float | None = None  # how long a start should take; None: nothing is known
    deadline_s: float | None = None  # when a start has failed, learned from earlier ones; None: as configured
    outage_s: float = 0.0  # nothing serves for so long: stop and start of a swap
    notes: tuple[str, ...] = ()  # for who decides: warm or cold start, what vLLM makes of the flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What the operator allows for one knob. `octaves`: the largest single step, in doublings."""

    min: float | None = None
    max: float | None = None
    allowed: tuple[Value, ...] = ()
    octaves: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One share of traffic and the evidence it takes to leave it."""

    weight: int  # percent of the traffic that green gets
    requests: int  # green must have answered at least so many
    at_least_s: float
    at_most_s: float  # no verdict by then: take back
    parity: int = 50  # the weight at which green carries as much as each other server: latency is comparable


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a rollout proceeds; frozen when it starts. The last step is the hold-back: all traffic on green,
    blue kept warm at weight 0; of several servers the last old one serves on, as control."""

    steps: tuple[Step, ...]
    start_s: float  # deadline from launch to healthy
    warm_up_requests: int
    warm_up_s: float
    drain_s: float  # how long requests in flight may take before a server is retired over them
    lease_s: float
    examine_s: float = 0.0  # green and blue answer the golden prompts within so long; 0: they are not asked
    margin: float = 0.01  # a green that is worse by this share of its requests or more must not pass
    gain_needed: bool = True  # a policy's change that gains nothing measurable is taken back


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """How long until it is known what a change does, from the traffic of the last minutes."""

    rate_rps: float
    usual_s: float  # from the first share to the end of load parity, the median
    likely_s: float  # nine of ten take no longer
    hold_s: float  # then, under full load
    too_long: tuple[int, ...] = ()  # weights of the steps that will probably end undecided
    fitting_margin: float | None = None  # with which they would not


OutcomeResult = Literal["promoted", "rolled_back", "failed", "denied", "undecided", "refused", "no_gain"]
"""`rolled_back`: judged worse, or lost in the canary. `failed`: never served. `denied`: a person said no.
`undecided`: taken back for what says nothing about the value, as no evidence in time.
`no_gain`: not worse, and not measurably better either: taken back.
`refused`: vLLM itself does not take these values; nothing was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a change: the machine's memory of values that were tried."""

    at: datetime
    result: OutcomeResult
    to: Mapping[Knob, Value]
    before: Mapping[Knob, Value] = field(default_factory=dict)
    why: str = ""
