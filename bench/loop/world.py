"""One world: a server's flags, its clients and promises, and what should be suggested, as in worlds.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from flettner.agent.config.convert import slo as slo_of
from flettner.agent.config.tables import SloTable
from flettner.agent.config.types import seconds
from flettner.agent.domain.model import Slo
from flettner.simulator.flags import InvalidFlagError, parse
from flettner.simulator.hardware import SCALED
from flettner.simulator.workload import Lengths
from flettner.vllm_facts.live_limits import SCHEDULER_CLASS

OWN = Path(__file__).with_name("worlds.toml")
DEFAULTS = "defaults"  # the table of a file whose keys all its worlds have
MODEL = "tiny"
SEQS, ACTIVE = "max_num_seqs", "max_num_active_seqs"
SLOTS = 256  # vLLM's default of --max-num-seqs
PROGRAM = ("-m", "flettner.simulator.server", "--model", MODEL)
Direction = Literal["up", "down"]
Mode = Literal["approve", "auto"]
ModelUse = Literal["off", "on", "alone"]
"""Of the policy `model`; `alone`: every other policy but `health` is off."""
DIRECTIONS: Mapping[str, Direction] = {"up": "up", "down": "down", "on": "up", "off": "down"}


class WorldError(Exception):
    """A world cannot be run; the message names the file, the world and the key."""


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """Arrivals with gamma gaps: `cv` 1 is Poisson, above it bursts."""

    seconds: float
    rate: float  # requests per second
    cv: float


@dataclass(frozen=True, slots=True)
class Mix:
    """Lengths in tokens from `at_s` on; the prompt without the shared prefix."""

    at_s: float
    prompt: Lengths
    output: Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """`right`: knobs and the direction that cures; None: nothing but advice should be suggested."""

    name: str
    flags: tuple[str, ...]  # of the simulator, with hardware and truth
    slo: Slo
    promises: Mapping[str, tuple[str, float]]  # the SLO as written: ("500ms", 0.95)
    load: tuple[LoadPhase, ...]
    mixes: tuple[Mix, ...]  # in order of time; the first at 0 s
    right: Mapping[str, Direction] | None
    shared_prefix: int  # tokens that all prompts begin with
    mode: Mode
    model: ModelUse
    think_s: float
    seeds: int
    seed: int  # of the first run
    rollout: str  # TOML below [targets.rollout]; empty: the default plan
    real: bool  # suitable for --real
    within_min: float | None
    good_at_end: float | None
    lost_most: int
    wrong_most: int
    shared_card: float | None  # the part of the one card that a start takes; None: each server has its own
    gpus: int | None = None  # of the host, of one model whose size is known; a saving is wanted
    servers: int = 1  # equal containers that run at the begin; with several of them a saving is wanted
    peak_rps: float | None = None  # of all servers, in the busiest minute of the week before the load
    history_h: int = 168  # hours of that week that are known
    peak_kv: float | None = None  # tokens in a server's KV cache, in the fullest minute of that week
    neighbour: float | None = None  # of the one card's memory, that another process holds; a saving is wanted
    wake_s: float | None = None  # a stopped server sleeps, and is back after so many seconds; None: it starts
    live_cap: bool = False  # the server takes another cap while it runs, and the daemon's strategy is `hot`

    @property
    def command(self) -> tuple[str, ...]:
        """The server's command line without interpreter, host and port."""
        if not self.live_cap:
            return (*PROGRAM, *self.flags)
        cap = "--max-num-active-seqs"
        flags = (cap if word == "--max-num-seqs" else word for word in self.flags)
        return (*PROGRAM, *flags, "--max-num-seqs", f"{SLOTS}", "--scheduler-cls", SCHEDULER_CLASS)

    @property
    def saves(self) -> bool:
        return self.servers > 1 or self.gpus is not None or self.neighbour is not None

    @property
    def start_s(self) -> float:
        """Seconds that a server takes to start."""
        return parse(self.command[2:]).simulation.start_s

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.load)

    @property
    def key(self) -> str:
        """Hash of what decides the goodput of a setting: everything but what is right, and the daemon."""
        traits = (self.flags, self.promises, self.load, self.mixes, self.shared_prefix)
        return sha256(repr(traits).encode()).hexdigest()[:16]

    def mix_at(self, at_s: float) -> Mix:
        return next(mix for mix in reversed(self.mixes) if mix.at_s <= at_s)


def _lengths(value: object) -> Lengths:
    match value:
        case int() if value >= 1 and not isinstance(value, bool):
            return Lengths(kind="fixed", middle=value)
        case [int() | float() as middle, int() | float() as sigma, int() as least, int() as most] if (
            middle > 0 and sigma >= 0 and 1 <= least <= most
        ):
            return Lengths(kind="lognormal", middle=float(middle), sigma=float(sigma), least=least, most=most)
        case _:
            raise ValueError(f"must be a number of tokens or [median, sigma, least, most], not {value!r}")


def _phase(row: object) -> LoadPhase:
    match row:
        case [int() | float() as lasts_s, int() | float() as rate, int() | float() as cv]:
            if lasts_s <= 0 or rate <= 0 or cv < 0:
                raise ValueError(f"seconds and requests/s must be positive, cv not negative: {row!r}")
            return LoadPhase(float(lasts_s), float(rate), float(cv))
        case _:
            raise ValueError(f"must have rows of [seconds, requests/s, cv], not {row!r}")


def _promise(row: object) -> tuple[str, float]:
    match row:
        case [str() as under, int() | float() as share]:
            seconds(under)
            return under, float(share)
        case _:
            raise ValueError(f'must have rows like ttft = ["500ms", 0.95], not {row!r}')


def _direction(word: object) -> Direction:
    if word not in DIRECTIONS:
        raise ValueError(f"must be one of {', '.join(DIRECTIONS)}, not {word!r}")
    return DIRECTIONS[str(word)]


def _truth(value: object) -> tuple[str, ...]:
    """Return the simulator's flags for `jitter`, `hiccups`, and `NAME_times` with a name of its step time."""
    words: list[str] = []
    times = []
    for name, given in dict(value).items() if isinstance(value, dict) else ():
        match given:
            case int() | float() if name == "jitter":
                words += ["--sim-jitter", f"{given:g}"]
            case [int() | float() as every, int() | float() as length] if name == "hiccups":
                words += ["--sim-hiccups", f"{every:g}:{length:g}"]
            case int() | float() if name.endswith("_times") and name.removesuffix("_times") in SCALED:
                times.append(f"{name.removesuffix('_times')}={given:g}")
            case _:
                names = ", ".join(["jitter", "hiccups", *(f"{name}_times" for name in sorted(SCALED))])
                raise ValueError(f"{name!r} = {given!r} is unknown (there are: {names})")
    return (*words, "--sim-times", ",".join(times)) if times else tuple(words)


_Tokens = Annotated[Lengths, BeforeValidator(_lengths)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)


class _Change(_Table):
    """The mix from `at` s on; a length that is missing stays."""

    at: float
    prompt: _Tokens | None = None
    output: _Tokens | None = None


class _WorldTable(_Table):
    about: str = ""
    flags: list[str | int | float] = []
    hardware: str | None = None
    prompt: _Tokens
    output: _Tokens
    changes: list[_Change] = []
    slo: dict[Literal["ttft", "itl", "e2e"], Annotated[tuple[str, float], BeforeValidator(_promise)]]
    load: list[Annotated[LoadPhase, BeforeValidator(_phase)]] = Field(min_length=1)
    right: dict[str, Annotated[Direction, BeforeValidator(_direction)]] | None = Field(None, min_length=1)
    truth: Annotated[tuple[str, ...], BeforeValidator(_truth)] = ()
    shared_prefix: int = Field(0, ge=0)
    mode: Mode = "approve"
    model: ModelUse = "off"
    think_s: float = 20.0
    seeds: int = Field(20, ge=0)
    seed: int = Field(0, ge=0)
    rollout: str = ""
    gpus: Annotated[int, Field(ge=1)] | None = None
    servers: int = Field(1, ge=1)
    peak_rps: float | None = Field(None, gt=0)
    history_h: int = Field(168, ge=0)
    peak_kv: Annotated[float, Field(ge=0)] | None = None
    neighbour: Annotated[float, Field(gt=0, lt=1)] | None = None
    wake_s: Annotated[float, Field(gt=0)] | None = None
    shared_card: Annotated[float, Field(ge=0, lt=1)] | None = None
    real: bool = False
    within_min: float | None = None
    good_at_end: float | None = None
    lost_most: int = Field(0, ge=0)
    wrong_most: int = Field(0, ge=0)


_OF_TABLE = _WorldTable.model_fields.keys() & World.__dataclass_fields__.keys() - {"flags", "slo", "load"}


def read(path: Path) -> list[World]:
    """Return the worlds of a file, in its order. Raises WorldError."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorldError(f"{path}: cannot be read as TOML: {error}") from error
    defaults = tables.pop(DEFAULTS, {})
    try:
        return [parse_world(name, {**defaults, **table}) for name, table in tables.items()]
    except (TypeError, WorldError) as error:
        raise WorldError(f"{path}: {error}") from None


def parse_world(name: str, document: object) -> World:
    """Raises WorldError."""
    try:
        table = _WorldTable.model_validate(document)
    except ValidationError as error:
        raise WorldError(f"{name}: {_describe(error)}") from None
    gpu = () if table.hardware is None else ("--sim-hardware", table.hardware)
    flags = tuple(map(str, table.flags))
    for key, words in (("hardware", gpu), ("flags", (*flags, *gpu)), ("truth", (*table.truth, *gpu))):
        try:
            parse((*PROGRAM[2:], *words))
        except InvalidFlagError as error:
            raise WorldError(f"{name}: {key}: the simulator refuses {' '.join(words)}: {error}") from error
        except SystemExit:
            raise WorldError(f"{name}: {key}: the simulator does not know {' '.join(words)}") from None
    promises = {key: {"under": under, "share": share} for key, (under, share) in table.slo.items()}
    return World(
        name=name,
        flags=(*flags, *gpu, *table.truth),
        slo=slo_of(SloTable.model_validate(promises)),
        promises=dict(table.slo.items()),
        load=tuple(table.load),
        mixes=_mixes(name, table),
        **{key: getattr(table, key) for key in _OF_TABLE},
    )


def _mixes(name: str, table: _WorldTable) -> tuple[Mix, ...]:
    mixes = [Mix(0.0, table.prompt, table.output)]
    for change in table.changes:
        mixes.append(Mix(change.at, change.prompt or mixes[-1].prompt, change.output or mixes[-1].output))
    if any(earlier.at_s >= later.at_s for earlier, later in pairwise(mixes)):
        raise WorldError(f"{name}: changes: the times `at` must be above 0 and grow")
    return tuple(mixes)


def _describe(error: ValidationError) -> str:
    first: Any = error.errors()[0]
    match first["type"]:
        case "extra_forbidden":
            what = f"is no key of a world (there are: {', '.join(sorted(_WorldTable.model_fields))})"
        case "missing":
            what = "is missing"
        case "value_error":
            what = str(first["ctx"]["error"])
        case _:
            what = f"{first['msg']}, not {first['input']!r}"
    return f"{'.'.join(map(str, first['loc']))}: {what}"
