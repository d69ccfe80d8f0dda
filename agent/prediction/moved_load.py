"""The recorded load on other GPUs or in another layout, by the measured law and the data sheets. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flettner.agent.prediction.served_load import ServedLoad
from flettner.performance_model.engine_settings import limits_of, veto, with_changes
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.moved_law import move_law
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import layout
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.values import Knob, Setting, Value

LAYOUT = frozenset({"tensor_parallel_size", "data_parallel_size"})
CHANGED = (*sorted(LAYOUT), "gpu_memory_utilization")
BY_DATA_SHEET = "the ratio of the step times is that of the data sheets, usually within 15 %"


@dataclass(frozen=True, slots=True)
class MovedLoad:
    """`load`: of one engine, with its law and limits. `engines`: of a server."""

    load: ServedLoad
    engines: int


def changes_layout(to: Setting) -> bool:
    """Whether it is a change of the layout, and of nothing else but what follows from it."""
    return bool(LAYOUT & to.keys()) and to.keys() <= set(CHANGED)


def in_layout(load: ServedLoad, to: Mapping[Knob, Value]) -> MovedLoad:
    """Raises PredictionInputError."""
    return move_load(load, with_changes(load.config, to))


def move_load(load: ServedLoad, wanted: ServeConfig) -> MovedLoad:
    """`wanted`: another card or other sizes. Raises PredictionInputError, also if the model does not fit."""
    engines = layout(wanted).dp
    engine = with_changes(wanted, {"data_parallel_size": None})
    law = move_law(load.law, load.config, engine)
    limits = limits_of(engine, kv_tokens=_kv_tokens(load, engine))
    if why := veto(engine, limits):
        raise PredictionInputError(why)
    moved = replace(load, config=engine, law=law, present=limits, rates=replace(load.rates, power_w=None))
    return MovedLoad(moved, engines)


def _kv_tokens(load: ServedLoad, engine: ServeConfig) -> int | None:
    """As measured, times the ratio of the estimates; None: as estimated."""
    before, after = estimate_fit(load.config), estimate_fit(engine)
    if before is None or after is None or before.kv_tokens < 1:
        return None
    return round(load.present.kv_tokens * after.kv_tokens / before.kv_tokens)
