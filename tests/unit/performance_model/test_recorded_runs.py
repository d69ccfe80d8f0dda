"""The engine against recorded runs of real vLLM, and priors against laws that were measured."""

from dataclasses import replace
from statistics import quantiles

import pytest

from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.fit import expected_s
from flettner.performance_model.hardware_prior import MIDDLE_GPU, prior_law, scaled_prior
from flettner.performance_model.outcome import Goals, measure
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from flettner.performance_model.step_law import StepLaw
from flettner.performance_model.work_windows import WorkWindow
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import GpuModel, ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu, find_speed, gpus_with_speed
from tests.unit.performance_model.recorded import (
    GPUS,
    measured,
    recorded_law,
    recorded_limits,
    recorded_trace,
)

LLAMA = "meta-llama/Llama-3.1-8B"


def case_of(gpu: str, model: str, **setting: int | bool) -> ServeConfig:
    return ServeConfig(setting={"model": model, **setting}, card=find_gpu(gpu), model=find_model(model))


@pytest.mark.parametrize("gpu", GPUS)
def test_latencies_of_recorded_vllm_are_predicted_within_3_percent(gpu: str) -> None:
    run = ReplayedScheduler(recorded_trace(), recorded_law(gpu), recorded_limits(gpu)).run()

    numbers = measure(run, Goals())

    assert {name: numbers[name] for name in measured(gpu)} == pytest.approx(measured(gpu), rel=0.03)


def test_a_full_kv_cache_preempts_as_it_did() -> None:
    run = ReplayedScheduler(recorded_trace(), recorded_law("RTX 4090"), recorded_limits("RTX 4090")).run()

    assert run.peak_kv_share > 0.99
    assert 100 < run.preemptions < 300


@pytest.mark.parametrize("gpu", GPUS)
def test_the_prior_of_the_gpu_encloses_the_measured_law(gpu: str) -> None:
    prior, law = prior_law(case_of(gpu, LLAMA)), recorded_law(gpu)

    for name in ("step_us", "token_us", "kv_read_us", "attention_us"):
        low, high = prior.interval(name, 1.0)
        assert low < getattr(law, name) < high


@pytest.mark.parametrize(
    ("gpu", "model", "step_ms", "token_us"),
    [  # microsoft/vidur, data/profiling: dense layers, without the 1.2 ms of the host and attention
        ("A100 80GB", "meta-llama/Meta-Llama-3-8B", 11.3, 67.2),
        ("A100 80GB", "meta-llama/Llama-2-7b-hf", 10.5, 64.6),
        ("H100", "meta-llama/Llama-2-7b-hf", 6.8, 20.5),
        ("A40", "meta-llama/Llama-2-7b-hf", 25.4, 124.8),
    ],
)
def test_priors_are_near_kernel_profiles(gpu: str, model: str, step_ms: float, token_us: float) -> None:
    law = prior_law(case_of(gpu, model)).law

    assert law.step_us / 1000 == pytest.approx(step_ms, rel=0.15)
    assert law.token_us == pytest.approx(token_us, rel=0.15)


@pytest.mark.parametrize(
    ("gpu", "itl_ms"),
    [  # one request at a time, Llama 3.1 8B in 16 bits; vLLM 0.21 and 0.23, sources in hardware_prior
        ("H100 SXM", 6.48),
        ("A100 40GB", 13.3),
    ],
)
def test_priors_are_near_single_requests_of_real_vllm(gpu: str, itl_ms: float) -> None:
    law = prior_law(case_of(gpu, LLAMA)).law

    assert 1000 * law.seconds(1, 1, 1000) == pytest.approx(itl_ms, rel=0.10)


def test_an_embedding_of_its_own_is_looked_up_and_not_read() -> None:
    case = case_of("H100", LLAMA)
    assert case.model is not None
    tied = replace(case, model=replace(case.model, tied=True))

    separate, shared = prior_law(case).law, prior_law(tied).law

    assert shared.step_us - separate.step_us == pytest.approx(
        1e6 * 2 * 128_256 * 4096 / (0.83 * 3350e9), rel=0.01
    )


def test_eager_mode_costs_what_launching_exceeds_the_gpu() -> None:
    fast, slow = (prior_law(case_of("H100", LLAMA, enforce_eager=eager)).law for eager in (False, True))
    t4 = [prior_law(case_of("T4", LLAMA, enforce_eager=eager)).law for eager in (False, True)]

    assert slow.step_us > 1.3 * fast.step_us
    assert t4[0].step_us == t4[1].step_us


def test_two_gpus_halve_the_work_and_exchange_it() -> None:
    single, two = (prior_law(case_of("H100", LLAMA, tensor_parallel_size=tp)).law for tp in (1, 2))

    assert single.step_us / 2 < two.step_us < single.step_us
    assert single.token_us / 2 < two.token_us < single.token_us


@pytest.mark.parametrize(
    ("case", "lacks"),
    [
        (case_of("H100", LLAMA, pipeline_parallel_size=2), "pipeline"),
        (case_of("H100", "acme/unheard-of"), "model's size"),
        (replace(case_of("H100", LLAMA), card=None), "the GPU is unknown"),
        (case_of("Quadro RTX 5000", LLAMA), "the speed of Quadro RTX 5000"),
    ],
)
def test_a_prior_names_what_it_lacks(case: ServeConfig, lacks: str) -> None:
    with pytest.raises(PredictionInputError, match=lacks):
        prior_law(case)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("model", [LLAMA, "acme/unheard-of"])
def test_windows_tell_the_speed_of_an_unknown_gpu_and_others_its_ratios(gpu: str, model: str) -> None:
    law = recorded_law(gpu)
    work = WorkWindow(seconds=0.0, steps=50, sizes=((60.0, 40), (500.0, 10)), sequences=2500, kv_read=1e6)
    windows = [replace(work, seconds=expected_s(law, work))] * 8

    prior = scaled_prior(replace(case_of("H100", model), card=None), windows)

    assert sum(expected_s(prior, window) for window in windows) == pytest.approx(
        sum(window.seconds for window in windows)
    )
    for name in ("step_us", "token_us", "kv_read_us"):
        assert 0.5 < getattr(prior, name) / getattr(law, name) < 2
    assert 0.5 < prior.knee / law.knee < 2


def test_the_middle_gpu_is_the_median_of_the_known_ones() -> None:
    speeds = [speed for name in gpus_with_speed() if (speed := find_speed(GpuModel(name=name, memory_gib=1)))]
    ratios = [1000 * gpu.tflops / gpu.gb_per_s for gpu in speeds]

    low, middle, high = quantiles(ratios)

    assert 1000 * MIDDLE_GPU.tflops / MIDDLE_GPU.gb_per_s == pytest.approx(middle, rel=0.02)
    assert (low, high) == pytest.approx((160, 290), abs=10)


def test_without_the_knee_a_larger_token_budget_looks_wrong() -> None:
    """Why the law has a knee: small mixed steps do not pay for weights and for tokens."""
    law = recorded_law("RTX 4090")
    additive = StepLaw(step_us=law.step_us, token_us=law.token_us, sequence_us=law.sequence_us)

    assert law.seconds(100, 20, 0) < 0.7 * additive.seconds(100, 20, 0)
