"""The value types that all packages share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Literal

from flettner.agent.domain.regimes import RegimePlan
from flettner.primitives.address import Address
from flettner.vllm_facts.values import ChangeClass, Knob, Setting, Value, as_number, is_same

Mode = Literal["advise", "approve", "auto"]

Approvers = Literal["any", "other"]
"""Who may approve what an operator proposed: `any` operator, or only an `other` one."""

Strategy = Literal["surge", "replace", "swap", "hot", "save"]
"""`surge`: green starts while all servers run. `replace`: green replaces one of several servers, then further
new servers replace the rest, one at a time. `swap`: green replaces the only server: a planned outage. Each
replica of a server counts as a server. `hot`: the servers that run take the new values without a restart.
`save`: some of the servers stop, and the others carry the load."""

SERVERS = "servers"
"""In a change, beside the names of flags: how many servers serve, each replica counted; only of a saving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKnobs:
    """The knobs of a server that can be changed while it runs, each from its lowest to its highest value.

    `number`: epoch and number of the last change since the server's start; None: there was none.
    """

    limits: Mapping[Knob, tuple[float, float]]
    start: Mapping[Knob, Value] = field(default_factory=dict)  # the values that the server started with
    number: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter, as `/v1/models` lists it and `/v1/load_lora_adapter` loads it."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One vLLM server, running or to be started."""

    name: str  # of one incarnation, never reused: "chat-r3"; also Envoy's cluster name
    setting: Setting
    address: str = ""  # "127.0.0.1:8101", or all of its replicas with ", "; empty until launched
    ours: bool = True  # False: third-party, adopted by flettner
    like: str = field(default="", compare=False)  # the server that it is a copy of, and whose slot it takes
    differs: tuple[str, ...] = field(default=(), compare=False)  # its differences from `like`, a line each
    replicas: int = field(default=1, compare=False)  # equal engines behind its address
    hot: HotKnobs | None = field(default=None, compare=False)  # None: every change needs a restart
    adapters: tuple[Adapter, ...] = field(default=(), compare=False)  # that it serves, or gets when launched
    start: Setting = field(default_factory=dict, compare=False)
    """`image`, `command`, `env.NAME` and `gpus` as far as changes set them: see agent/domain/upgrade.py."""
    on_cpus: bool = field(default=False, compare=False)  # by its environment; False: not known

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Of all its replicas; none until it is launched. Raises ValueError."""
        return tuple(Address.parse(text) for text in self.address.split(", ") if text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """How new requests wait in the proxy while no server serves."""

    wait_s: float  # the longest wait of one request
    requests: int  # the most that begin to wait in each `wait_s`
    each: str = ""  # of what there may be several, each with its own `requests`; empty: there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """`share` of the requests stay under `under_s` seconds."""

    under_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The target's objectives. Without an objective (None) only gross regressions are judged."""

    ttft: Objective | None = None
    itl: Objective | None = None  # mean gap between tokens of one request
    e2e: Objective | None = None
    errors: float = 0.999  # share of requests that are neither failed, cut nor answered `abort`

    @property
    def longest_s(self) -> float:
        """The largest promised latency of a request; 0 if none is promised."""
        return max(
            (objective.under_s for objective in (self.ttft, self.e2e) if objective is not None), default=0.0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One number that a suggestion or a verdict is based on."""

    metric: str
    value: float
    unit: str
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingLimits:
    """Requests/s with which a saving is tested, and above which its servers start again, by its approval."""

    peak_rps: float  # of the busiest minute of the last week, all servers together
    server_rps: float  # that one server carries within the objectives, the lower end of its band


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A change that a policy proposes: one cause, mostly one knob; or several causes at once."""

    rule: str  # "Q1", a rule of docs/reference/rules.md
    to: Mapping[Knob, Value]  # only the knobs that change
    why: str  # one sentence with the numbers in it
    expects: str
    risks: str
    source: str  # what shows it; see vllm_facts/references.py
    evidence: tuple[Evidence, ...] = ()
    assumed: Mapping[Knob, Value] = field(default_factory=dict)  # present values of knobs that no flag sets
    klass: ChangeClass = "auto"
    mitigation: bool = False  # relieves a present problem: needs to be not worse, not better
    after: str = ""  # the suggestion of another target that must be promoted before
    accepts_other_answers: bool = False  # a person accepts that green answers differently
    saving: SavingLimits | None = None  # of a change of SERVERS
    regimes: RegimePlan | None = None  # two settings to switch between; `to` is the one that is not in force
    cheaper: bool = False  # takes fewer GPUs: needs to be not worse, not better


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightResult:
    """The engine's result for a change before anything is changed."""

    problem: str = ""  # why it is impossible, with the fix; empty if it is possible
    lasting: bool = False  # the values themselves are invalid: they are not suggested again
    strategy: Strategy = "surge"
    why: str = ""  # why this strategy
    start_s: float | None = None  # expected duration of a start; None: unknown
    deadline_s: float | None = None  # of a start, learned from earlier ones; None: as configured
    outage_s: float = 0.0  # expected outage of a swap: stop and start
    shares_card: bool = False  # green runs on the GPUs of the servers in force, and they slow each other
    notes: tuple[str, ...] = ()  # for the operator: warm or cold start, vLLM's reading of the flags
    patch: str = ""  # the change of the server's manifest, to be committed where that is kept
    owner: str = ""  # what writes the manifest and would revert a change: a person commits the patch instead
    resolved: Mapping[Knob, tuple[Value, Value]] = field(default_factory=dict)
    """Present and new value where the engine says more exactly what is changed: an image by its digest."""
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Present and new version of what an upgrade changes, by name: "vLLM", "CUDA"; an empty text: unknown."""
    unchecked: bool = False  # advise mode starts nothing: vLLM itself was not asked about the flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The values of one knob that the operator allows. `octaves`: the largest single step, in doublings."""

    min: float | None = None
    max: float | None = None
    allowed: tuple[Value, ...] = ()
    octaves: float = 1.0

    @property
    def has_limits(self) -> bool:
        """False if every value is allowed."""
        return self.has_range or bool(self.allowed)

    @property
    def has_range(self) -> bool:
        return self.min is not None or self.max is not None

    def allows(self, value: Value) -> bool:
        """Whether exactly this value is allowed. With `min` or `max` only numbers are; True is not 1."""
        number = as_number(value)
        if self.has_range and (number is None or self.clamp(number) != number):
            return False
        return not self.allowed or any(is_same(value, listed) for listed in self.allowed)

    def clamp(self, number: float) -> float:
        """The nearest number from `min` to `max`."""
        raised = number if self.min is None else max(number, self.min)
        return raised if self.max is None else min(raised, self.max)

    def nearest(self, number: float, now: float | None) -> float:
        """Where values are listed, the value nearest to `number` on the way from `now`, which may be unknown.

        `now` itself if there is none; `number` where no values are listed.
        """
        if not self.allowed or self.allows(number):
            return number
        low, high = (-inf, inf) if now is None else sorted((number, now))
        listed = (value for value in map(as_number, self.allowed) if value is not None)
        near = (value for value in listed if low <= value <= high and self.allows(value))
        return min(near, key=lambda value: abs(value - number), default=number if now is None else now)

    def reach(self, now: float) -> tuple[float, float]:
        """The lowest and the highest number of one step from `now`: none is a multiple of 0, or of -1."""
        factor = 2**self.octaves
        if now > 0:
            return now / factor, now * factor
        return (now, now) if now else (-inf, inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One share of traffic and the evidence needed to leave it."""

    weight: int  # percent of the traffic that green gets
    requests: int  # the least that green must have answered
    at_least_s: float
    at_most_s: float  # without a verdict by then the rollout is rolled back
    parity: int = 50  # the weight at which green carries as much as each other server: latency is comparable


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a rollout proceeds. Until green gets its first share it follows the evidence; then it is frozen.

    The last step is the hold step: all traffic on green, blue warm at weight 0. With several servers the last
    old one keeps serving as the control.
    """

    steps: tuple[Step, ...]
    start_s: float  # deadline from launch to healthy
    warm_up_requests: int
    warm_up_s: float
    drain_s: float  # time that requests in flight get before a server is retired
    lease_s: float
    examine_s: float = 0.0  # deadline of the golden prompts; 0: none are sent
    compare_answers: bool = True  # False: only the operator's own command examines green
    margin: float = 0.01  # a green that is worse by this share of its requests or more must not pass
    gain_needed: bool = True  # roll back a policy's change without a measurable gain
    shares_card: bool = False  # green runs on the GPUs of the servers in force, and they slow each other
    quick: bool = True  # shorter shares while blue fails its SLO by far
    own_shares: bool = False  # an operator wrote the shares: none is enlarged or left out


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForecast:
    """What comes before green's first share, and what green costs the servers in force on the same card."""

    usual_s: float  # start and warm-up
    likely_s: float  # the 90th percentile
    starting: float = 1.0  # how many times as long a token takes while green starts
    beside: float = 1.0  # while both serve
    measured: int = 0  # earlier starts behind these two factors; 0: as on a recorded GPU
    queue: int = 0  # requests that will wait when the hold step begins, if the load stays


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Expected duration of the rollout at the traffic of the last minutes."""

    rate_rps: float
    usual_s: float  # from the first share to the end of load parity, the median
    likely_s: float  # the 90th percentile
    hold_s: float  # of the hold step, under full load
    too_long: tuple[int, ...] = ()  # weights of steps that will probably reach their limit without a proof
    fitting_margin: float | None = None  # margin with which no step would
    decided_by: Literal["better", "gain", "not_worse"] = "not_worse"  # which test will end the canary
    start: StartForecast | None = None  # None: it is not known how long a start takes

    @property
    def whole_s(self) -> tuple[float, float]:
        """Start, canary and hold step: the median, and the 90th percentile."""
        usual_s, likely_s = (self.start.usual_s, self.start.likely_s) if self.start else (0.0, 0.0)
        return usual_s + self.usual_s + self.hold_s, likely_s + self.likely_s + self.hold_s


OutcomeResult = Literal[
    "promoted", "rolled_back", "failed", "denied", "aborted", "undecided", "refused", "no_gain"
]
"""`rolled_back`: judged worse, or exited in the canary. `failed`: never served. `denied`, `aborted`: by an
operator, before and during the rollout. `undecided`: rolled back for a reason that is no evidence about the
values: no verdict in time, a server that a third party or a crash of the host ended.
`no_gain`: rolled back as neither worse nor measurably better.
`refused`: vLLM does not accept the values; nothing was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a change: the machine's memory of tried values."""

    at: datetime
    result: OutcomeResult
    to: Mapping[Knob, Value]
    before: Mapping[Knob, Value] = field(default_factory=dict)
    why: str = ""
    hot: bool = False  # the servers that ran took the values
    rate_rps: float | None = None  # requests per second that a hot change was made for
    started: bool = True  # False: the preflight found an obstacle, and no server got the values
