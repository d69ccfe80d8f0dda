"""The events that the machine handles: past tense, frozen, stamped when they enter the process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from flettner.agent.domain.answers import AnswerComparison
from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.headroom import Headroom, KvPeak
from flettner.agent.domain.model import Adapter, Approvers, Mode, PreflightResult, Server
from flettner.agent.domain.model_search import ModelSearchResult
from flettner.agent.domain.prediction_check import PredictionCheck
from flettner.agent.domain.reading import EngineLiveness, Reading
from flettner.agent.domain.regimes import RegimeAdvice
from flettner.agent.domain.request_counts import ClientBucket, RequestCounts
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import Knob, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted:
    """The first event of every process, so that recovery is an ordinary transition."""

    at: datetime
    epoch: int
    mode: Mode
    servers: tuple[Server, ...]  # found running
    weights: Mapping[str, int] | None = None  # found at the proxy; None: no proxy is configured
    approval: Approvers = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Every second: blue's reading over the window, and each server's counts of this second."""

    at: datetime
    reading: Reading | None = None
    arms: Mapping[str, RequestCounts] = field(default_factory=dict)  # by server, of servers with requests
    clients: Mapping[str, Mapping[ClientBucket, RequestCounts]] = field(default_factory=dict)
    """Of `arms`, the requests whose client is known, by its bucket."""
    unknown_models: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By server and name: requests of this second for a model that the server says it does not serve."""
    lost: Mapping[str, int] | None = None
    """Requests that their clients did not get whole, by the last server that tried; None: not counted."""
    engines: Mapping[str, EngineLiveness] = field(default_factory=dict)  # by server, of scraped servers
    blind: str = ""  # why requests cannot be counted now; empty if they can
    calibration: Mapping[str, Calibration] = field(default_factory=dict)  # by stream, each once a minute
    ahead: Mapping[str, str] = field(default_factory=dict)
    """By the id of a suggestion that one of these comes after, once it has ended: why it was not promoted; or
    empty: it was."""
    findings: tuple[Finding, ...] = ()  # of lint, on the setting in force
    model_search: ModelSearchResult | None = None  # of the performance model
    headroom: Headroom | None = None  # the latest
    peak_rps: float | None = None  # of all servers, in the busiest minute of the known hours of the week
    kv_peak: KvPeak | None = None  # of the known hours of the week
    regimes: RegimeAdvice | None = None  # the latest


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflighted:
    at: datetime
    number: int
    preflight: PreflightResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    at: datetime
    number: int
    server: Server
    refused: tuple[str, ...] = ()  # the adapters that it could not load, a sentence each


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    at: datetime
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    at: datetime
    number: int
    quality: AnswerComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    at: datetime
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    at: datetime
    number: int
    open: int  # requests when the deadline passed


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    at: datetime
    number: int
    how: str = ""  # where there is more than one way


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """`moved`: the server that runs as the adopted one did, and belongs to that one's owner from now on."""

    at: datetime
    number: int
    moved: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobsSet:
    at: datetime
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectFailed:
    """`external`: the cause lies outside the server, as in ServerLost."""

    at: datetime
    number: int
    why: str
    log: tuple[str, ...] = ()
    external: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLost:
    """A server exited (`gone`) or no longer answers /health.

    `external`: a third party or its host ended, paused or disconnected it: no evidence about its setting.
    """

    at: datetime
    server: str
    why: str
    gone: bool = True
    log: tuple[str, ...] = ()
    external: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptersRead:
    """A server serves other adapters than when it was last asked: clients have loaded or unloaded some."""

    at: datetime
    server: str
    adapters: tuple[Adapter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeAsked:
    """An operator requests a change, which becomes a suggestion and needs an approval.

    `request`, in each of these decisions: the idempotency key, valid across restarts; empty: none.
    """

    at: datetime
    actor: str
    to: Mapping[Knob, Value]
    reason: str
    accepts_other_answers: bool = False
    after: str = ""  # the suggestion of another target that must be promoted before
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    at: datetime
    actor: str
    suggestion: str
    digest: str
    comment: str = ""
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    at: datetime
    actor: str
    suggestion: str
    reason: str
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    at: datetime
    actor: str
    reason: str
    rollout: str = ""  # the id that the operator named; empty: of what is under way, or lasts
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    at: datetime
    actor: str
    maintenance: bool = False
    by_admin: bool = False  # then only an admin resumes
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    at: datetime
    actor: str
    by_admin: bool = False
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfigured:
    """The rules of a reloaded config are in force from this step on."""

    at: datetime
    actor: str  # who asked for it; empty: nobody known, as by a signal
    mode: Mode
    approval: Approvers
    new_slo: bool = False  # what was counted under other objectives does not count


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionChecked:
    """What the performance model predicted of a rollout was compared with what it did."""

    at: datetime
    check: PredictionCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedChangeCompared:
    """The minutes with a merged change that others applied were compared with those before it."""

    at: datetime
    why: str  # the result as a sentence


PersonDecision = ChangeAsked | Approved | Denied | Aborted | Paused | Resumed
"""Decisions of an operator."""

EffectOutcome = (
    Preflighted
    | Launched
    | Warmed
    | Examined
    | Routed
    | Drained
    | Stopped
    | Retired
    | KnobsSet
    | EffectFailed
)
"""Outcomes of the effect with this `number`."""

Event = (
    AgentStarted
    | Observed
    | EffectOutcome
    | ServerLost
    | AdaptersRead
    | PersonDecision
    | PredictionChecked
    | AppliedChangeCompared
    | Reconfigured
)
