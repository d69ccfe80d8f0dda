"""What was learned of a target and survives a restart of the daemon, as JSON. Pure.

The time without a daemon is cut out of the trace, as nothing was recorded of it.
"""

from array import array
from bisect import bisect_left
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache

from pydantic import TypeAdapter, ValidationError

from flettner.agent.prediction.learned import TRACE_S, FittedLaw, LearnedModel, TokenCounts
from flettner.performance_model.acceptance import Acceptance
from flettner.performance_model.engine_settings import SCHEDULING
from flettner.performance_model.log_clock import BusySpan
from flettner.performance_model.packed_trace import PackedTrace
from flettner.performance_model.step_law import with_error
from flettner.performance_model.work_windows import WorkWindow
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.values import Setting

VERSION = 4
OLDEST = timedelta(seconds=TRACE_S)  # the load of longer ago is another one


@dataclass(frozen=True, slots=True, kw_only=True)
class LawKey:
    """What the time of a step depends on: with another key it is another law."""

    flags: Setting  # without those that leave the time of a step as it is
    version: str  # of vLLM; empty: unknown
    gpu: str  # empty: unknown


def law_key(config: ServeConfig) -> LawKey:
    flags = {knob: value for knob, value in config.setting.items() if knob not in SCHEDULING}
    return LawKey(flags=flags, version=config.version, gpu=config.card.name if config.card else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSteps:
    """Steps before the recording, which laws are fitted to as well.

    `last`: number of the latest in the iteration log.
    """

    logged: tuple[WorkWindow, ...] = ()
    counted: tuple[WorkWindow, ...] = ()  # between scrapes of /metrics
    busy: tuple[BusySpan, ...] = ()
    last: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PastLoad:
    """The trace before the recording, `seconds` long, of one of `servers` equal servers."""

    seconds: float = 0.0
    servers: int = 1
    arrivals_s: tuple[float, ...] = ()
    prompts: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    cached: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModel:
    """`laws`: the latest, oldest first. `acceptance`: of their predictions."""

    version: int = VERSION
    at: datetime
    target: str
    key: LawKey
    load: PastLoad
    counts_from: TokenCounts
    kv_tokens: int | None
    outside_s: float
    steps: PastSteps
    laws: tuple[FittedLaw, ...]
    acceptance: Acceptance
    why_no_law: str

    def without_law(self) -> "SavedModel":
        return replace(self, steps=PastSteps(last=self.steps.last), laws=(), acceptance=Acceptance())

    def model(self, server: str, config: ServeConfig) -> LearnedModel:
        """What it says of a server with the same law."""
        newest = self.laws[-1] if self.laws else None
        in_force = newest if self.acceptance.is_accepted else None
        return LearnedModel(
            target=self.target,
            server=server,
            config=config,
            fitted_at=self.at,
            trace=packed(self.load),
            counts_from=self.counts_from,
            servers=self.load.servers,
            kv_tokens=self.kv_tokens,
            law=with_error(in_force.law, self.acceptance.itl, self.acceptance.ttft) if in_force else None,
            law_source=newest.source if newest else "",
            rows=newest.rows if newest else 0,
            acceptance=self.acceptance if self.acceptance.itl else None,
            outside_s=self.outside_s,
            why_no_law=self.why_no_law,
        )


@cache
def _json() -> TypeAdapter[SavedModel]:
    return TypeAdapter(SavedModel)


def encode(saved: SavedModel) -> bytes:
    return _json().dump_json(saved)


def decode(text: bytes, target: str, now: datetime) -> SavedModel:
    """Raises ValueError with the reason if it is not of this target and format, or too old."""
    try:
        model = _json().validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if model.version != VERSION:
        raise ValueError(f"it has version {model.version}, this flettner reads version {VERSION}")
    if model.target != target:
        raise ValueError(f"it is of the target {model.target}")
    if not timedelta() <= now - model.at <= OLDEST:
        raise ValueError(f"it was written on {model.at:%Y-%m-%d at %H:%M} UTC, and is used for {OLDEST}")
    columns = (model.load.prompts, model.load.outputs, model.load.cached)
    if any(len(column) != len(model.load.arrivals_s) for column in columns):
        raise ValueError("the columns of its trace differ in length")
    return model


def packed(load: PastLoad) -> PackedTrace:
    return PackedTrace(
        arrivals_s=array("d", load.arrivals_s),
        prompts=array("I", load.prompts),
        outputs=array("I", load.outputs),
        cached=array("I", load.cached),
    )


def join_load(past: PastLoad | None, trace: PackedTrace, seconds: float, servers: int) -> PastLoad:
    """The last TRACE_S of the load before the recording and in it.

    With another number of servers only the recording's: the share of one was another.
    """
    before = PastLoad() if past is None or past.servers != servers else past
    since_s = min(before.seconds, max(0.0, before.seconds + seconds - TRACE_S))
    begin = bisect_left(before.arrivals_s, since_s)
    kept_s = before.seconds - since_s
    return PastLoad(
        seconds=kept_s + seconds,
        servers=servers,
        arrivals_s=(
            *(at_s - since_s for at_s in before.arrivals_s[begin:]),
            *(at_s + kept_s for at_s in trace.arrivals_s),
        ),
        prompts=(*before.prompts[begin:], *trace.prompts),
        outputs=(*before.outputs[begin:], *trace.outputs),
        cached=(*before.cached[begin:], *trace.cached),
    )
