"""The law of step time for a model on a GPU without measurements: physics with the efficiency of measured
pairs.

The efficiencies are the middle of fits of kernel profiles (microsoft/vidur, data/profiling: A100, H100, A40;
casys-kaist/LLMServingSim, profiler/perf: RTX 4090, RTX PRO 6000). Two models on one GPU tell the reading of
weights from what a layer costs beside it: bandwidth 0.83 to 0.92, a layer 20 to 63 us. Throughput is 0.64 to
0.97, the knee at 0.44 to 0.93 of the ratio of both. Time between tokens of single requests, of real vLLM and
by this prior: Llama 3.1 8B on an H100 6.5 and 6.9 ms (0.21, yobitelcomm.github.io/bench), on an A100 of 40 GB
13.3 and 13.1 ms (0.23, johnmusgrave.com). A prior says which setting is better sooner than how fast it is.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import exp
from random import Random
from statistics import median
from typing import Literal

from flettner.performance_model.engine_settings import is_told_to_plan_ahead
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.fit import (
    COUNTED_WEIGHT,
    DRAWS,
    LAUNCH_SIGMA,
    LEAST_WINDOWS,
    LOGGED_WEIGHT,
    expected_s,
    fit_law,
    total_s,
)
from flettner.performance_model.log_clock import BusySpan, add_unlogged, clocked_windows, unlogged
from flettner.performance_model.step_law import StepLaw, UncertainLaw, widen, with_launch
from flettner.performance_model.work_windows import WorkWindow, with_kv_read
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import Model, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import Layout, layout
from flettner.vllm_facts.sizing.gpus import GpuSpeed, find_speed, gpus_with_speed
from flettner.vllm_facts.sizing.kv_cache import GIB, kv_bytes_per_token, weights_gib

BANDWIDTH, THROUGHPUT, ATTENTION, KNEE = 0.83, 0.7, 0.5, 0.6
LAYER_US = 30.0  # of a step: kernels that read no weights, and the begin and end of each kernel
HOST_STEP_US, HOST_SEQUENCE_US = 500.0, 10.0
"""Scheduling, sampling and output of a step, as far as the GPU waits for them: vLLM does most of it while the
GPU computes. A sequence costs the GPU 4 to 6 us beside its KV cache (kernel profiles), the host up to 40."""
EAGER_LAYER_US = 260.0  # launching kernels without graphs: H100, 8B, 8.4 ms a step against 5.1
LAUNCH_LAYER_US = 560.0
"""The same in a step with prompts that is larger than any CUDA graph: the middle of that and of 1,200,
measured on two hosts with an H100 and an H200 (vLLM 0.25)."""
EAGER_STEP_US = 1200.0  # the host's part of a step, of which nothing is hidden while it launches kernels
LINK_GB_PER_S = {"nvlink": 300.0, "pcie": 20.0, None: 100.0}  # of an all-reduce, in practice
REDUCE_US, NCCL_REDUCE_US = 15.0, 30.0
"""Of one all-reduce of a small batch, by vLLM's own kernel, and by NCCL, which it uses on more than two GPUs
without NVLink: NCCL took 20 to 40 us even over NVSwitch (microsoft/vidur, profiling/network/h100_dgx)."""
OWN_REDUCE_ON_PCIE = 2  # the most GPUs on PCIe that vLLM's own kernel reduces over
MIDDLE_GPU = GpuSpeed(gb_per_s=1000, tflops=206)
"""The median FLOP for each byte of the known GPUs; half of them have 160 to 290."""
MIDDLE_MODEL, MIDDLE_LAYERS = "meta-llama/Llama-3.1-8B", 32
STALL = 3.0  # times as long as other windows of the clock, for their work
WindowKind = Literal["steps", "clock", "histograms"]
"""Of windows: elapsed times of steps, spans of the log's clock, or differences of /metrics pages."""
COMMON, EACH = 0.2, 0.3
"""Sigmas of lognormal errors. Measured costs of a token are 0.67 to 1.13 times this prior."""


def prior_law(config: ServeConfig, *, seed: int = 0) -> UncertainLaw:
    """Raises PredictionInputError if the model or the GPU is unknown, or the pair is not modelled."""
    if config.card is None:
        raise PredictionInputError("the GPU is unknown: give --gpu, or a measured law with --law")
    speed = find_speed(config.card)
    if speed is None:
        gpus = ", ".join(gpus_with_speed())
        raise PredictionInputError(f"the speed of {config.card.name} is unknown: give --law; known: {gpus}")
    law = _law(config, speed, LINK_GB_PER_S[config.card.link])
    wide = widen(
        law, common=COMMON, each=EACH, count=DRAWS, seed=seed, source=f"prior for {config.card.name}"
    )
    random, launch_us = Random(f"launch:{seed}"), _launch_us(config)  # noqa: S311 - statistics
    return replace(
        wide,
        law=with_launch(law, launch_us),
        draws=tuple(
            with_launch(draw, launch_us * exp(random.gauss(0.0, LAUNCH_SIGMA))) for draw in wide.draws
        ),
    )


def scaled_prior(config: ServeConfig, windows: Sequence[WorkWindow]) -> StepLaw:
    """The law of the data sheet, as fast as the windows were. Of an unknown GPU or model
    MIDDLE_GPU and MIDDLE_MODEL give the ratios of the coefficients."""
    shape = _shape(config)
    return shape.scaled(total_s(None, windows) / total_s(shape, windows))


def rows_of_log(
    config: ServeConfig,
    windows: Sequence[WorkWindow],
    spans: Sequence[BusySpan],
    context: float,
    *,
    on_gpu: bool,
) -> tuple[Sequence[WorkWindow], WindowKind]:
    """What a law is fitted to, of an iteration log: windows with the elapsed times of its steps and what the
    clock says beside them, or spans of the clock alone; no rows where neither tells what a step takes.

    In spans of a second a step, its tokens and its sequences look more alike; without a GPU (`on_gpu`: there
    is one, if of an unknown kind) no prior tells them apart. `context`: tokens of KV cache that a sequence
    reads, where the log does not say.
    """
    ahead = is_told_to_plan_ahead(config) is True
    clocked = clocked_windows(spans, plans_ahead=ahead) if on_gpu else None
    if clocked is None:
        return with_kv_read(add_unlogged(windows, unlogged(spans)), context), "steps"
    return _without_stalls(config, with_kv_read(clocked, context)), "clock"


def _without_stalls(config: ServeConfig, windows: Sequence[WorkWindow]) -> list[WorkWindow]:
    """Without those in which the server stood still: one of a minute would be all that a fit sees."""
    shape = _shape(config)
    times = [window.seconds / expected_s(shape, window) for window in windows]
    return [window for window, time in zip(windows, times, strict=True) if time <= STALL * median(times)]


def fit_with_prior(
    config: ServeConfig,
    windows: Sequence[WorkWindow],
    *,
    kind: WindowKind,
    draws: int = DRAWS,
    source: str = "",
) -> UncertainLaw:
    """The law of the windows; what they leave open is decided by the prior.

    Those of single steps leave less open than the ratios of an unknown GPU or model err.
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
        prior=prior if kind != "steps" or _is_known(config) else None,
        prior_weight=COUNTED_WEIGHT if kind == "histograms" else LOGGED_WEIGHT,
        launch_us=_launch_us(config) if kind == "clock" else 0.0,
        least=1 if kind == "clock" else LEAST_WINDOWS,
    )


def _launch_us(config: ServeConfig) -> float:
    return LAUNCH_LAYER_US * ((config.model.layers if config.model else None) or MIDDLE_LAYERS)


def _is_known(config: ServeConfig) -> bool:
    try:
        prior_law(config)
    except PredictionInputError:
        return False
    return True


def _shape(config: ServeConfig) -> StepLaw:
    try:
        return replace(prior_law(config).law, launch_tokens=0.0)
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
    looked_up = 0.0 if model.tied else _vocabulary_bytes(model) / shape.tp
    read_us = (weights * GIB - looked_up) / (BANDWIDTH * speed.gb_per_s * 1e3)
    token_us = 2 * _parameters_of_a_token(model) / shape.tp / (THROUGHPUT * speed.tflops * 1e6)
    layers = model.layers or 0
    gpu_us = read_us + LAYER_US * layers + HOST_STEP_US
    launch_us = EAGER_LAYER_US * layers + EAGER_STEP_US if config.setting.get("enforce_eager") else 0.0
    return StepLaw(
        step_us=max(gpu_us, launch_us) + 2 * layers * _reduce_us(config, shape.tp),
        knee=KNEE * read_us / token_us,
        token_us=token_us + _reduce_token_us(model, shape, link_gb_per_s),
        sequence_us=HOST_SEQUENCE_US,
        kv_read_us=kv_bytes / (BANDWIDTH * speed.gb_per_s * 1e3),
        attention_us=_attention_us(model, shape, speed.tflops),
    )


def _vocabulary_bytes(model: Model) -> float:
    """Of an input embedding of its own, of which a step reads a row for each token; it stays in 16 bit."""
    return 2 * (model.vocabulary_parameters or 0.0)


def _parameters_of_a_token(model: Model) -> float:
    """Those that each token is multiplied with: the output is computed for one token of a sequence."""
    active = model.active_parameters or model.parameters or 0.0
    outer = (model.vocabulary_parameters or 0.0) * (1 if model.tied else 2)
    return active - outer if outer < active else active


def _reduce_us(config: ServeConfig, tp: int) -> float:
    """Of one all-reduce, without its bytes."""
    if tp == 1:
        return 0.0
    by_nccl = config.card is not None and config.card.link == "pcie" and tp > OWN_REDUCE_ON_PCIE
    return NCCL_REDUCE_US if by_nccl else REDUCE_US


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
