"""The recorded load on other GPUs or in another layout, by the measured law and the data sheets. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from flettner.agent.prediction.served_load import ServedLoad
from flettner.performance_model.engine_settings import limits_of, one_engine, veto, with_changes
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.moved_law import move_law
from flettner.performance_model.resample import scale_rate
from flettner.performance_model.trace import Trace
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import layout
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.values import Knob, Setting, Value

LAYOUT = frozenset({"tensor_parallel_size", "data_parallel_size"})
CHANGED = (*sorted(LAYOUT), "gpu_memory_utilization")
BY_DATA_SHEET = "the ratio of the step times is that of the data sheets, usually within 15 %"


def changes_layout(to: Setting) -> bool:
    """Whether it is a change of the layout, and of nothing else but what follows from it."""
    return bool(LAYOUT & to.keys()) and to.keys() <= set(CHANGED)


def in_layout(load: ServedLoad, to: Mapping[Knob, Value]) -> ServedLoad:
    """The server in another layout; the trace is still that of one of its engines now.

    Raises PredictionInputError.
    """
    wanted = with_changes(load.config, {"data_parallel_size": load.engines, **to})
    return move_load(load, one_engine(wanted), layout(wanted).dp)


def move_load(load: ServedLoad, engine: ServeConfig, engines: int) -> ServedLoad:
    """`engine`: with another card or other sizes.

    Raises PredictionInputError, also if the model does not fit.
    """
    law = move_law(load.law, load.config, engine)
    limits = limits_of(engine, kv_tokens=_kv_tokens(load, engine))
    if why := veto(engine, limits):
        raise PredictionInputError(why)
    rates = replace(load.rates, power_w=None)
    return replace(load, config=engine, law=law, present=limits, rates=rates, engines=engines)


def take_share(trace: Trace, engines: int, wanted: int) -> Trace:
    """The load of one of the `wanted` engines, from that of one of `engines`."""
    if wanted % engines == 0:
        return trace[:: wanted // engines]
    return scale_rate(trace, engines / wanted)


def _kv_tokens(load: ServedLoad, engine: ServeConfig) -> int | None:
    """As measured, times the ratio of the estimates; None: as estimated."""
    before, after = estimate_fit(load.config), estimate_fit(engine)
    if before is None or after is None or before.kv_tokens < 1:
        return None
    return round(load.present.kv_tokens * after.kv_tokens / before.kv_tokens)
