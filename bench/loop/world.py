"""One world: a server's flags, its clients and promises, and what should be suggested, from a JSON file."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

from flettner.agent.config.convert import slo as slo_of
from flettner.agent.config.tables import SloTable
from flettner.agent.config.types import seconds
from flettner.agent.domain.model import Slo
from flettner.simulator.flags import InvalidFlagError, parse
from flettner.simulator.hardware import SCALED
from flettner.simulator.workload import Lengths
from flettner.vllm_facts.live_limits import SCHEDULER_CLASS

MODEL = "tiny"
SEQS, ACTIVE = "max_num_seqs", "max_num_active_seqs"
SLOTS = 256  # vLLM's default of --max-num-seqs
PROGRAM = ("-m", "flettner.simulator.server", "--model", MODEL)
Direction = Literal["up", "down"]
Mode = Literal["approve", "auto"]
ModelUse = Literal["off", "on", "alone"]
"""Of the policy `model`; `alone`: every other policy but `health` is off."""
T = TypeVar("T")

KEYS = frozenset(
    """
    about changes flags good_at_end hardware load lost_most mode model output prompt real right rollout seed
    seeds shared_prefix slo think think_s truth within_min wrong_most
    """.split()  # noqa: SIM905 - one a line would be a page
)


class WorldError(Exception):
    """A world cannot be run; the message names the file and the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPhase:
    """Arrivals with gamma gaps: `cv` 1 is Poisson, above it bursts."""

    seconds: float
    rate: float  # requests per second
    cv: float


@dataclass(frozen=True, slots=True, kw_only=True)
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
    shared_prefix: int = 0  # tokens that all prompts begin with
    mode: Mode = "approve"
    model: ModelUse = "off"
    think_s: float = 20.0
    seeds: int = 20
    seed: int = 0  # of the first run
    rollout: str = ""  # TOML below [targets.rollout]; empty: the default plan
    real: bool = False  # suitable for --real
    within_min: float | None = None
    good_at_end: float | None = None
    lost_most: int = 0
    wrong_most: int = 0
    about: str = ""
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
    def start_s(self) -> float:
        """Seconds that a server takes to start."""
        return parse(self.command[2:]).simulation.start_s

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.load)

    @property
    def key(self) -> str:
        """Hash of what decides the goodput of a setting: everything but what is right, and the daemon."""
        told = (self.flags, self.promises, self.load, self.mixes, self.shared_prefix)
        return sha256(repr(told).encode()).hexdigest()[:16]

    def mix_at(self, at_s: float) -> Mix:
        return next(mix for mix in reversed(self.mixes) if mix.at_s <= at_s)


def read(path: Path) -> World:
    """Raises WorldError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorldError(f"{path}: cannot be read as JSON: {error}") from error
    try:
        return parse_world(path.stem, document)
    except WorldError as error:
        raise WorldError(f"{path}: {error}") from None


def parse_world(name: str, document: object) -> World:
    """Raises WorldError."""
    if not isinstance(document, dict):
        raise WorldError(f"must be an object, not {document!r}")
    if unknown := sorted(document.keys() - KEYS):
        raise WorldError(f"{unknown[0]}: is no key of a world (there are: {', '.join(sorted(KEYS))})")
    for key in ("prompt", "output", "load", "slo"):
        if key not in document:
            raise WorldError(f"{key}: is missing")

    def take(key: str, convert: Callable[[Any], T], default: object = None) -> T:
        try:
            return convert(document.get(key, default))
        except (AttributeError, TypeError, ValueError) as error:
            raise WorldError(f"{key}: {error}") from error

    base = Mix(at_s=0.0, prompt=take("prompt", _lengths), output=take("output", _lengths))
    gpu = take("hardware", _hardware)
    own = take("flags", lambda value: _checked(_words(value), gpu), [])
    flags = (*own, *gpu, *take("truth", lambda value: _checked(_truth(value), gpu), {}))
    promises = take("slo", _promises)
    return World(
        name=name,
        flags=flags,
        slo=take("slo", lambda _: _slo(promises)),
        promises=promises,
        load=take("load", _load),
        mixes=(base, *take("changes", lambda rows: _changes(rows, base), [])),
        right=take("right", _right),
        shared_prefix=take("shared_prefix", _whole, 0),
        mode=take("mode", _mode, "approve"),
        model=take("model", _model, "off"),
        think_s=take("think_s" if "think_s" in document else "think", _number, 20.0),
        seeds=take("seeds", _whole, 20),
        seed=take("seed", _whole, 0),
        rollout=take("rollout", _text, ""),
        real=take("real", _switch, default=False),
        within_min=take("within_min", _optional, None),
        good_at_end=take("good_at_end", _optional, None),
        lost_most=take("lost_most", _whole, 0),
        wrong_most=take("wrong_most", _whole, 0),
        about=take("about", _text, ""),
    )


def _checked(words: tuple[str, ...], gpu: tuple[str, ...] = ()) -> tuple[str, ...]:
    try:
        parse((*PROGRAM[2:], *words, *gpu))
    except InvalidFlagError as error:
        raise ValueError(f"the simulator refuses {' '.join(words)}: {error}") from error
    except SystemExit:
        raise ValueError(f"the simulator does not know {' '.join(words)}") from None
    return words


def _words(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - JSON
    if not isinstance(value, list) or not all(isinstance(word, str | int | float) for word in value):
        raise ValueError(f"must be a list of words, not {value!r}")
    return tuple(map(str, value))


def _hardware(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - JSON
    return () if value is None else _checked(("--sim-hardware", _text(value)))


def _truth(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - JSON
    """The simulator's flags for `jitter`, `hiccups`, and `NAME_times` with a name of its step time."""
    words: list[str] = []
    times = []
    for name, given in value.items():
        if name == "jitter":
            words += ["--sim-jitter", f"{_number(given):g}"]
        elif name == "hiccups":
            every, length = given
            words += ["--sim-hiccups", f"{_number(every):g}:{_number(length):g}"]
        elif name.endswith("_times") and name.removesuffix("_times") in SCALED:
            times.append(f"{name.removesuffix('_times')}={_number(given):g}")
        else:
            known = ", ".join(["jitter", "hiccups", *(f"{one}_times" for one in sorted(SCALED))])
            raise ValueError(f"{name!r} is unknown (there are: {known})")
    return (*words, "--sim-times", ",".join(times)) if times else tuple(words)


def _lengths(value: Any) -> Lengths:  # noqa: ANN401 - JSON
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return Lengths(kind="fixed", middle=value)
    if isinstance(value, list) and len(value) == 4:  # noqa: PLR2004
        middle, sigma, least, most = map(_number, value)
        if middle > 0 and sigma >= 0 and 1 <= least <= most:
            return Lengths(kind="lognormal", middle=middle, sigma=sigma, least=int(least), most=int(most))
    raise ValueError(f"must be a number of tokens or [median, sigma, least, most], not {value!r}")


def _changes(rows: Any, base: Mix) -> tuple[Mix, ...]:  # noqa: ANN401 - JSON
    mixes = [base]
    for row in rows:
        if unknown := sorted(row.keys() - {"at", "prompt", "output"}):
            raise ValueError(f"{unknown[0]!r} is unknown (there are: at, prompt, output)")
        mixes.append(
            Mix(
                at_s=_number(row.get("at")),
                prompt=_lengths(row["prompt"]) if "prompt" in row else mixes[-1].prompt,
                output=_lengths(row["output"]) if "output" in row else mixes[-1].output,
            )
        )
    if any(earlier.at_s >= later.at_s for earlier, later in pairwise(mixes)):
        raise ValueError("the times `at` must be above 0 and grow")
    return tuple(mixes[1:])


def _load(rows: Any) -> tuple[LoadPhase, ...]:  # noqa: ANN401 - JSON
    if not isinstance(rows, list) or not rows:
        raise ValueError("must be a list of [seconds, requests/s, cv]")
    phases = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 3:  # noqa: PLR2004
            raise ValueError(f"must have rows of [seconds, requests/s, cv], not {row!r}")
        lasts_s, rate, cv = map(_number, row)
        if lasts_s <= 0 or rate <= 0 or cv < 0:
            raise ValueError(f"seconds and requests/s must be positive, cv not negative: {row!r}")
        phases.append(LoadPhase(seconds=lasts_s, rate=rate, cv=cv))
    return tuple(phases)


def _promises(value: Any) -> Mapping[str, tuple[str, float]]:  # noqa: ANN401 - JSON
    promises = {}
    for name, row in value.items():
        if name not in {"ttft", "itl", "e2e"} or not isinstance(row, list) or len(row) != 2:  # noqa: PLR2004
            raise ValueError(f'must have rows like "ttft": ["500ms", 0.95], not {name}: {row!r}')
        seconds(row[0])
        promises[name] = (_text(row[0]), _number(row[1]))
    return promises


def _slo(promises: Mapping[str, tuple[str, float]]) -> Slo:
    return slo_of(SloTable.model_validate({k: {"under": v[0], "share": v[1]} for k, v in promises.items()}))


def _right(value: Any) -> Mapping[str, Direction] | None:  # noqa: ANN401 - JSON
    if value is None:
        return None
    words: Mapping[str, Direction] = {"up": "up", "down": "down", "on": "up", "off": "down"}
    if not value or not all(direction in words for direction in value.values()):
        raise ValueError(f'must be null or an object like {{"max_num_seqs": "up"}}, not {value!r}')
    return {knob: words[direction] for knob, direction in value.items()}


def _mode(value: Any) -> Mode:  # noqa: ANN401 - JSON
    modes: Mapping[str, Mode] = {"approve": "approve", "auto": "auto"}
    if value not in modes:
        raise ValueError(f'must be "approve" or "auto", not {value!r}')
    return modes[value]


def _model(value: Any) -> ModelUse:  # noqa: ANN401 - JSON
    uses: Mapping[str, ModelUse] = {"off": "off", "on": "on", "alone": "alone"}
    if value not in uses:
        raise ValueError(f"must be one of {', '.join(uses)}, not {value!r}")
    return uses[value]


def _text(value: Any) -> str:  # noqa: ANN401 - JSON
    if not isinstance(value, str):
        raise TypeError(f"must be a text, not {value!r}")
    return value


def _switch(value: Any) -> bool:  # noqa: ANN401 - JSON
    if not isinstance(value, bool):
        raise TypeError(f"must be true or false, not {value!r}")
    return value


def _number(value: Any) -> float:  # noqa: ANN401 - JSON
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"must be a number, not {value!r}")
    return float(value)


def _whole(value: Any) -> int:  # noqa: ANN401 - JSON
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"must be a whole number, not {value!r}")
    return value


def _optional(value: Any) -> float | None:  # noqa: ANN401 - JSON
    return None if value is None else _number(value)
