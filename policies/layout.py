"""Report a model that is split over more GPUs than it needs, while its KV cache is nearly empty."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flettner.agent.domain.lateness import misses_objective
from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.hardware_prior import prior_law
from flettner.performance_model.step_law import StepLaw
from flettner.policies.shared.signals import build_note, check_options, has_insufficient_data
from flettner.vllm_facts.references import SCALING
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import Layout, layout
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.sizing.parallel_layouts import plan_layout

SOURCE = SCALING


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutNote:
    """Rule D9. It changes nothing: green of another layout needs GPUs that are free, and longer tokens are
    the operator's to accept.
    """

    kv_idle_below_ratio: float = 0.1  # highest KV usage of the window
    room_at_most_ratio: float = 0.5  # of a narrower engine's KV cache, that the tokens in use may fill
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        config, usage, slo = context.config, reading.kv_usage, context.slo
        if config is None or usage is None or has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        now = layout(config)
        if now.tp * now.pp == 1 or usage.high >= self.kv_idle_below_ratio or reading.waiting.high > 0:
            return ()
        if misses_objective(reading.ttft, slo.ttft, 1) or misses_objective(reading.itl, slo.itl, 1):
            return ()
        plan = plan_layout(config)
        if plan is None or plan.experts or plan.layout.tp * plan.layout.pp >= now.tp * now.pp:
            return ()
        wanted = replace(plan.layout, dp=1)
        took, alone = estimate_fit(config), estimate_fit(config, shape=wanted)
        if took is None or alone is None:
            return ()
        used = usage.high * took.kv_tokens * now.dp
        if used > self.room_at_most_ratio * alone.kv_tokens:
            return ()
        steps_s = _steps_s(config, wanted, reading, used)
        if steps_s is None or (slo.itl is not None and steps_s[1] > slo.itl.under_s):
            return ()
        now_s, one_s = steps_s
        size, engines = wanted.tp * wanted.pp, now.gpus // (wanted.tp * wanted.pp)
        why = (
            f"over {reading.span_s:.0f} s at most {usage.high:.1%} of the KV cache was used and "
            f"{reading.running.high:.0f} requests ran, while {_name(config)} is split over {now.gpus} "
            f"GPUs: {size} would have {alone.kv_tokens:,} tokens of KV cache, "
            f"{alone.kv_tokens / max(used, 1):,.0f} times what is in use"
        )
        advice = (
            f"no change: by the data sheet a token takes {1e3 * one_s:.1f} ms on {size} instead of "
            f"{1e3 * now_s:.1f} ms on {now.gpus}, so {size} of {now.gpus} GPUs would carry this load; all "
            f"of them hold {engines} engines (tensor_parallel_size {wanted.tp}, "
            f"data_parallel_size {engines})"
        )
        numbers = (("kv_usage_high", usage.high, "ratio"), ("token_s_predicted", one_s, "s"))
        return (build_note("D9", reading, why, advice, SOURCE, *numbers),)


def _steps_s(
    config: ServeConfig, wanted: Layout, reading: Reading, used: float
) -> tuple[float, float] | None:
    """Seconds of a step under the present load: now, and of one narrower engine.

    By the law of the data sheet; None if the GPU or the model has no known speed. `used`: tokens of KV cache.
    """
    now, running = layout(config), max(1.0, reading.running.mean)
    sizes = {"tensor_parallel_size": wanted.tp, "pipeline_parallel_size": wanted.pp, "data_parallel_size": 1}
    try:
        split = prior_law(config).law
        one = prior_law(replace(config, setting={**config.setting, **sizes})).law
    except PredictionInputError:
        return None
    return _step_s(split, running / now.dp, used / now.dp), _step_s(one, running, used)


def _step_s(law: StepLaw, sequences: float, kv_read: float) -> float:
    """Of a step in which each sequence computes a token."""
    return law.seconds(round(sequences), round(sequences), round(kv_read))


def _name(config: ServeConfig) -> str:
    return config.model.name if config.model else "the model"


plugin = LayoutNote
