"""The law of step time for a model on a GPU without measurements: physics with the efficiency of measured
pairs.

The efficiencies are the middle of fits of kernel profiles (microsoft/vidur, data/profiling: A100, H100, A40;
casys-kaist/LLMServingSim, profiler/perf: RTX 4090, RTX PRO 6000): bandwidth 0.70 to 0.95, throughput 0.66
to 1.1, the knee at 0.35 to 0.65 of the ratio of both. A prior says which setting is better sooner than how
fast it is.
"""

from collections.abc import Sequence

from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.fit import COUNTED_WEIGHT, LOGGED_WEIGHT, expected_s, fit_law
from flettner.performance_model.step_law import StepLaw, UncertainLaw, widen
from flettner.performance_model.work_windows import WorkWindow
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import Model, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import Layout, layout
from flettner.vllm_facts.sizing.gpus import GpuSpeed, find_speed, gpus_with_speed
from flettner.vllm_facts.sizing.kv_cache import GIB, kv_bytes_per_token, weights_gib

BANDWIDTH, THROUGHPUT, ATTENTION, KNEE = 0.8, 0.75, 0.5, 0.5
HOST_STEP_US, HOST_SEQUENCE_US = 1200.0, 40.0
"""Scheduling, sampling and the constant part of attention; tuned on two recorded runs of vLLM 0.19."""
EAGER_LAYER_US = 260.0  # launching kernels without graphs: H100, 8B, 8.4 ms a step against 5.1
LINK_GB_PER_S = {"nvlink": 300.0, "pcie": 20.0, None: 100.0}  # of an all-reduce, in practice
REDUCE_US = 15.0  # of one all-reduce of a small batch
MIDDLE_GPU = GpuSpeed(gb_per_s=1000, tflops=206)
"""The median FLOP for each byte of the known GPUs; half of them have 160 to 290."""
MIDDLE_MODEL = "meta-llama/Llama-3.1-8B"
COMMON, EACH = 0.2, 0.3
"""Sigmas of lognormal errors. Measured costs of a token are 0.67 to 1.13 times this prior."""
DRAWS = 16


def prior_law(config: ServeConfig, *, seed: int = 0) -> UncertainLaw:
    """Raises PredictionInputError if the model or the GPU is unknown, or the pair is not modelled."""
    if config.card is None:
        raise PredictionInputError("the GPU is unknown: give --gpu, or a measured law with --law")
    speed = find_speed(config.card)
    if speed is None:
        known = ", ".join(gpus_with_speed())
        raise PredictionInputError(f"the speed of {config.card.name} is unknown: give --law; known: {known}")
    law = _law(config, speed, LINK_GB_PER_S[config.card.link])
    return widen(
        law, common=COMMON, each=EACH, count=DRAWS, seed=seed, source=f"prior for {config.card.name}"
    )


def scaled_prior(config: ServeConfig, windows: Sequence[WorkWindow]) -> StepLaw:
    """The law of the data sheet, as fast as the windows were. Of an unknown GPU or model
    MIDDLE_GPU and MIDDLE_MODEL give the ratios of the coefficients."""
    shape = _shape(config)
    factor = sum(one.seconds for one in windows) / sum(expected_s(shape, one) for one in windows)
    return shape.scaled(factor)


def fit_with_prior(
    config: ServeConfig,
    windows: Sequence[WorkWindow],
    *,
    is_logged: bool,
    draws: int = DRAWS,
    source: str = "",
) -> UncertainLaw:
    """The law of the windows; what they leave open is decided by the prior.

    Those of an iteration log (`is_logged`) leave less open than the ratios of an unknown GPU or model err.
    Raises PredictionInputError if the windows do not suffice.
    """
    if not windows:
        raise PredictionInputError("no step was recorded")
    prior = scaled_prior(config, windows)
    return fit_law(
        windows,
        attention_us=prior.attention_us,
        draws=draws,
        source=source,
        prior=prior if not is_logged or _is_known(config) else None,
        prior_weight=LOGGED_WEIGHT if is_logged else COUNTED_WEIGHT,
    )


def _is_known(config: ServeConfig) -> bool:
    try:
        prior_law(config)
    except PredictionInputError:
        return False
    return True


def _shape(config: ServeConfig) -> StepLaw:
    try:
        return prior_law(config).law
    except PredictionInputError:
        pass
    try:
        return _law(config, MIDDLE_GPU, LINK_GB_PER_S[None])
    except PredictionInputError:
        middle = ServeConfig(setting={}, card=None, model=find_model(MIDDLE_MODEL))
        return _law(middle, MIDDLE_GPU, LINK_GB_PER_S[None])


def _law(config: ServeConfig, speed: GpuSpeed, link_gb_per_s: float) -> StepLaw:
    model, shape = config.model, layout(config)
    weights, kv_bytes = weights_gib(config, shape), kv_bytes_per_token(config, shape)
    if model is None or weights is None or kv_bytes is None or not model.parameters:
        raise PredictionInputError("the model's size is unknown: give --model-config, or --law")
    if shape.pp > 1:
        raise PredictionInputError("pipeline_parallel_size above 1 is not modelled without --law")
    read_us = weights * GIB / (BANDWIDTH * speed.gb_per_s * 1e3)
    active = model.active_parameters or model.parameters
    token_us = 2 * active / shape.tp / (THROUGHPUT * speed.tflops * 1e6)
    launch_us = EAGER_LAYER_US * (model.layers or 0) if config.setting.get("enforce_eager") else 0.0
    return StepLaw(
        step_us=max(read_us, launch_us)
        + HOST_STEP_US
        + (2 * REDUCE_US * (model.layers or 0) if shape.tp > 1 else 0),
        knee=KNEE * read_us / token_us,
        token_us=token_us + _reduce_token_us(model, shape, link_gb_per_s),
        sequence_us=HOST_SEQUENCE_US,
        kv_read_us=kv_bytes / (BANDWIDTH * speed.gb_per_s * 1e3),
        attention_us=_attention_us(model, shape, speed.tflops),
    )


def _reduce_token_us(model: Model, shape: Layout, gb_per_s: float) -> float:
    """Two ring all-reduces of a hidden state for each layer."""
    if shape.tp == 1:
        return 0.0
    each = 2 * (model.hidden_size or 0) * 2 * (shape.tp - 1) / shape.tp
    return 2 * (model.layers or 0) * each / (gb_per_s * 1e3)


def _attention_us(model: Model, shape: Layout, tflops: float) -> float:
    """Scores and sums: 4 FLOP for each number of each head, pair of tokens and layer."""
    layers = model.attention_layers if model.hybrid else model.layers
    flop = 4.0 * (layers or 0) * (model.heads or 0) * (model.head_dim or 0) / shape.tp
    return flop / (ATTENTION * tflops * 1e6)
