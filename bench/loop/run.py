"""What one run of a world was: suggestions, rollouts, shares of the traffic, and every request."""

from collections.abc import Mapping
from dataclasses import dataclass

from flettner.vllm_facts.values import Knob, Setting, Value
from tests.support.virtual_server import Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A suggestion. Times in seconds since the begin of the load; negative: before it."""

    id: str
    rule: str
    klass: str
    at_s: float
    before: Mapping[Knob, Value]
    to: Mapping[Knob, Value]
    in_force: Setting  # the full setting that it was made for
    why: str
    approved_s: float | None = None
    status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """A rollout. `exposed`, `bad`: requests that green served, and of those failed or late."""

    id: str
    suggestion: str
    to: Mapping[Knob, Value]
    began_s: float
    ended_s: float | None
    outcome: str
    why: str
    exposed: int
    bad: int
    forecast_s: tuple[float, float] | None  # from the first share: usual and nine of ten, with the hold step
    canary_s: float | None  # from the first share of green to the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`shares`: since when which part of the traffic had which setting, in percent by server."""

    world: str
    seed: int
    said: tuple[Said, ...]
    rolled: tuple[Rolled, ...]
    shares: tuple[tuple[float, Mapping[str, int]], ...]
    settings: Mapping[str, Setting]  # by server
    ended: tuple[Ended, ...]  # times as in `shares`
    sent: int
    notes: tuple[tuple[float, str], ...]
    cpu_s: float
