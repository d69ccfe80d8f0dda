"""The tables of the config file: keys, types, defaults, and constraints within one table."""

from datetime import date
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from flettner.agent.config.listen import SOCKET, Role, check_principal
from flettner.agent.config.types import (
    Account,
    CertificateName,
    EnvName,
    HostName,
    KnobValue,
    ListenAddress,
    Listeners,
    PathText,
    PositiveSeconds,
    ProxyNetwork,
    PublicUrl,
    Seconds,
    Switch,
    TargetName,
)
from flettner.agent.domain.model import Approvers, Mode
from flettner.agent.notify.rules import NoticeSeverity
from flettner.primitives.address import Address, UnixSocket
from flettner.vllm_facts.serve_config import PROFILES
from flettner.vllm_facts.sizing.gpus import NO_GPU, find_gpu, find_speed, gpus_with_speed
from flettner.vllm_facts.values import Knob

DEFAULT_TRAFFIC = "envoy"
DEFAULT_LISTEN = Address("127.0.0.1", 8080)  # of that kind; others have their own, or none
MOST_VALUES = 10_000
MOST_STEPS = 20
LEASE_S = (5.0, 60.0)
"""Renewed once a second. As in Patroni, two renewals and a write must fit in a lease: with 2 s for Envoy
to apply a file and 1 s of reserve that is 5 s. Above 60 s an unwatched green keeps its share too long."""

Share = Annotated[float, Field(gt=0, le=1)]
FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]
UpgradePattern = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


def key_error(key: str, problem: str) -> PydanticCustomError:
    """An error in one key of a table that follows from several keys together."""
    return PydanticCustomError("wrong_key", "{problem}", {"key": key, "problem": problem})


class ConfigTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PluginTable(BaseModel):
    """Flettner's own keys; all other keys are options of the plugin."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class AnchorTable(ConfigTable):
    """Where the head of the journal is pushed to: `log`, `syslog`, or the name of a receiver of notices."""

    every: PositiveSeconds = 600.0
    to: tuple[str, ...] = ("log",)


class AuditTable(ConfigTable):
    """When a journal file is closed, how long closed files are kept, and when the journal is full."""

    segment_mb: Annotated[int, Field(ge=1, le=1024)] = 16
    segment_age: PositiveSeconds = 86400.0
    keep_mb: Annotated[int, Field(ge=1, le=2**20)] = 8192
    keep: PositiveSeconds = 366 * 86400.0
    anchor: AnchorTable = AnchorTable()


class AgentTable(ConfigTable):
    state_dir: PathText = "/var/lib/flettner"
    mode: Mode = "advise"
    approval: Approvers = "any"
    policies_dir: PathText | None = None
    learn: bool = True
    otlp_endpoint: PublicUrl | None = None
    audit: AuditTable = AuditTable()


class ApiTable(ConfigTable):
    listen: Listeners = (SOCKET,)
    hosts: tuple[HostName, ...] = ()
    trusted_proxies: tuple[ProxyNetwork, ...] = ()
    health: ListenAddress | None = None
    tokens_file: PathText | None = None
    tls_cert: PathText | None = None
    tls_key: PathText | None = None
    tls_client_ca: PathText | None = None
    users: dict[Account, Role] = {}
    groups: dict[Account, Role] = {}
    certificates: dict[CertificateName, Role] = {}
    authenticators: dict[str, Switch] = {}
    public_url: PublicUrl | None = None

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing, given = ("tls_cert", "tls_key") if self.tls_cert is None else ("tls_key", "tls_cert")
            raise key_error(missing, f"is required with {given}: TLS needs both")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise key_error("tls_cert", "is required with tls_client_ca: client certificates need TLS")
        if self.certificates and self.tls_client_ca is None:
            raise key_error("tls_client_ca", "is required with certificates: it names the CA that signs them")
        return self

    @model_validator(mode="after")
    def _check_listen(self) -> Self:
        for listen in self.listen:
            if self.tls_cert is None and not listen.is_loopback:
                raise key_error(
                    "listen",
                    f"{listen} is not a loopback address, and without TLS tokens are readable on the "
                    f"network: give tls_cert and tls_key, or use a proxy with TLS",
                )
        if not any(isinstance(listen, UnixSocket) for listen in self.listen):
            for key in ("users", "groups"):
                if getattr(self, key):
                    raise key_error(
                        key,
                        "has no effect: the kernel names the account at a unix socket only; "
                        "add one to listen",
                    )
        return self


class ObjectiveTable(ConfigTable):
    under: PositiveSeconds
    share: Share = 0.95


class ErrorsTable(ConfigTable):
    share: Share = 0.999


class SloTable(ConfigTable):
    ttft: ObjectiveTable | None = None
    itl: ObjectiveTable | None = None
    e2e: ObjectiveTable | None = None
    errors: ErrorsTable = ErrorsTable()


class EngineTable(PluginTable):
    kind: str
    strategy: Literal["auto", "surge", "replace", "swap", "hot"] = "auto"
    restart_after: PositiveSeconds | None = None


class TrafficTable(PluginTable):
    kind: str = DEFAULT_TRAFFIC
    listen: ListenAddress = DEFAULT_LISTEN


class BoundTable(ConfigTable):
    min: FiniteNumber | None = None
    max: FiniteNumber | None = None
    step: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    allowed: tuple[KnobValue, ...] = ()
    octaves: Annotated[float, Field(gt=0, le=10)] | None = None

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise key_error("min", f"{self.min:g} is above max {self.max:g}")
        if self.step is None:
            return self
        if self.min is None or self.max is None:
            raise key_error("step", "needs min and max: the values are min, min + step, ... up to max")
        if self.allowed:
            raise key_error("step", "cannot be combined with allowed: give one of them")
        if (self.max - self.min) / self.step > MOST_VALUES:
            raise key_error("step", f"makes more than {MOST_VALUES} values between min and max")
        return self


class StepTable(ConfigTable):
    weight: Annotated[int, Field(ge=1, le=99)]
    requests: Count
    at_least: Seconds
    at_most: PositiveSeconds

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.at_least >= self.at_most:
            raise key_error("at_most", "must be longer than at_least, or the step ends before it can pass")
        return self


SMOKE = StepTable(weight=5, requests=20, at_least=30.0, at_most=600.0)
PARITY = StepTable(weight=50, requests=100, at_least=60.0, at_most=2700.0)


def _check_weights(steps: tuple[StepTable, ...]) -> tuple[StepTable, ...]:
    weights = [step.weight for step in steps]
    if not 1 <= len(steps) <= MOST_STEPS:
        raise ValueError(
            f"must be 1 to {MOST_STEPS} steps, not {len(steps)}; the hold step follows automatically"
        )
    if weights != sorted(set(weights)):
        raise ValueError(f"the weights must grow from step to step, not {weights}")
    return steps


def _check_lease(lease_s: float) -> float:
    low, high = LEASE_S
    if not low <= lease_s <= high:
        raise ValueError(
            f"must be {low:g} to {high:g} s, not {lease_s:g}: it is renewed once a second, and must last for "
            f"two renewals and a write to the proxy, and expire soon if it is not renewed"
        )
    return lease_s


class RolloutTable(ConfigTable):
    steps: Annotated[tuple[StepTable, ...], AfterValidator(_check_weights)] = (SMOKE, PARITY)
    quick: bool = True
    hold: Seconds = 1800.0
    hold_at_most: PositiveSeconds | None = None  # None: the larger of 4 x `hold` and `hold` + 1 h
    hold_requests: Count = 200
    start: PositiveSeconds = 900.0
    warm_up_requests: Annotated[int, Field(ge=0, le=10_000)] = 20
    warm_up: PositiveSeconds = 300.0
    drain: PositiveSeconds = 600.0  # 16,000 tokens at 30 a second take nine minutes
    lease: Annotated[Seconds, AfterValidator(_check_lease)] = 15.0
    margin: Annotated[float, Field(gt=0, le=0.5)] = 0.01
    gain_needed: bool = True
    cooldown: Seconds = 600.0
    suggestion_ttl: PositiveSeconds = 3600.0
    changes_per_day: Annotated[int, Field(ge=0, le=1000)] = 8
    hot_changes_per_day: Annotated[int, Field(ge=0, le=1000)] = 24

    @model_validator(mode="after")
    def _check_hold(self) -> Self:
        if self.hold_at_most is not None and self.hold_at_most <= self.hold:
            raise key_error(
                "hold_at_most", "must be longer than hold, or green is rolled back before it can pass"
            )
        return self


class QualityTable(ConfigTable):
    prompts: PathText | None = None
    prefixes: PathText | None = None
    command: tuple[str, ...] = ()
    always: bool = False
    at_most: PositiveSeconds = 600.0

    @model_validator(mode="after")
    def _check_command(self) -> Self:
        if self.command and not any("{green}" in word for word in self.command):
            raise key_error("command", "has no {green} in any argument: it is replaced by green's URL")
        return self


class WindowsTable(ConfigTable):
    """When rollouts may start; see `parse_period` for the form of a period."""

    timezone: str = "UTC"
    allowed: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    holidays: tuple[date, ...] = ()
    outside: Literal["wait", "refuse"] = "wait"
    edge: Literal["finish", "roll_back"] = "finish"


Price = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _check_cards(cards: dict[str, float]) -> dict[str, float]:
    for name in cards:
        card = find_gpu(name)
        if card is None or find_speed(card) is None:
            raise ValueError(f"the speed of {name!r} is unknown; known: {', '.join(gpus_with_speed())}")
    return cards


class CostTable(ConfigTable):
    """The price of a GPU for an hour, in any currency; and whether fewer servers or GPUs are suggested.

    `cards`: prices of other GPUs that are to be had, by their names.
    """

    gpu_hour: Price | None = None
    cards: Annotated[dict[str, Price], AfterValidator(_check_cards)] = {}
    save: bool = False


class UpgradesTable(ConfigTable):
    images: tuple[UpgradePattern, ...] = ()
    commands: tuple[UpgradePattern, ...] = ()
    models: tuple[UpgradePattern, ...] = ()
    revisions: tuple[UpgradePattern, ...] = ()
    env: tuple[EnvName, ...] = ()


def _check_path_in_repository(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError("must be a path inside the repository")
    return path


class GitTable(PluginTable):
    """Where the command of the target lives in git; other keys are options of the forge."""

    repository: Annotated[str, Field(min_length=1, pattern=r"^[^-]")]  # a URL, or a path of this host
    branch: Annotated[str, Field(min_length=1, pattern=r"^[^-]")] = "main"
    path: Annotated[str, Field(min_length=1), AfterValidator(_check_path_in_repository)]
    server: str = ""
    forge: str = "none"
    token_file: PathText | None = None
    people: dict[str, tuple[Annotated[str, AfterValidator(check_principal)], Role]] = {}


def _check_gpu(name: str) -> str:
    if name != NO_GPU and find_gpu(name) is None:
        raise ValueError(
            f'{name[:60]!r} is no GPU that flettner knows: write a model, as "L4", or "{NO_GPU}" for none'
        )
    return name


def _check_profile(name: str) -> str:
    if name not in PROFILES:
        raise ValueError(f"must be one of {', '.join(PROFILES)}, not {name[:60]!r}")
    return name


class TargetTable(ConfigTable):
    """`profile`: the kind of traffic, for rules that depend on it; None: they are not asked.

    `gpu`: the model of the servers' GPUs where no sensor sees it; NO_GPU: they have none."""

    name: TargetName
    gpu: Annotated[str, AfterValidator(_check_gpu)] | None = None
    profile: Annotated[str, AfterValidator(_check_profile)] | None = None
    slo: SloTable = SloTable()
    engine: EngineTable
    traffic: TrafficTable = TrafficTable()
    sensors: dict[str, Switch] = {}
    bounds: dict[Knob, BoundTable] = {}
    rollout: RolloutTable = RolloutTable()
    windows: WindowsTable = WindowsTable()
    quality: QualityTable = QualityTable()
    upgrades: UpgradesTable = UpgradesTable()
    cost: CostTable = CostTable()
    git: GitTable | None = None


def _check_targets(targets: tuple[TargetTable, ...]) -> tuple[TargetTable, ...]:
    if not targets:
        raise ValueError("at least one is required")
    return targets


class NotifyTable(PluginTable):
    """`name`: for the log and `flettner notify test`; defaults to the kind."""

    kind: str
    name: TargetName | None = None
    severity: NoticeSeverity = "info"


class FileTable(ConfigTable):
    windows: WindowsTable = WindowsTable()
    agent: AgentTable = AgentTable()
    api: ApiTable = ApiTable()
    targets: Annotated[tuple[TargetTable, ...], AfterValidator(_check_targets)]
    policies: dict[str, Switch] = {}
    notify: tuple[NotifyTable, ...] = ()
