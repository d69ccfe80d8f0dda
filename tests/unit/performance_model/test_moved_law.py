"""A measured law in another layout or on another card, held against the simulator's hardware."""

from dataclasses import replace

import pytest

from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.moved_law import move_law
from flettner.performance_model.step_law import StepLaw, widen
from flettner.simulator.hardware import PRESETS, Hardware, split
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu

WITHIN = 0.25  # the links of the simulator are not those of the data sheets


def law_of(gpu: Hardware) -> StepLaw:
    return StepLaw(
        step_us=gpu.weights_us + gpu.head_us + gpu.host_step_us,
        token_us=gpu.token_us,
        sequence_us=gpu.host_sequence_us,
        kv_read_us=gpu.kv_read_us,
        attention_us=gpu.prefill_attention_us,
    )


def config_of(gpu: Hardware, model: str, tp: int) -> ServeConfig:
    return ServeConfig(
        setting={"model": model, "tensor_parallel_size": tp}, card=find_gpu(gpu.gpu), model=find_model(model)
    )


@pytest.mark.parametrize(
    ("name", "model", "link"),
    [
        ("h100-2b", "Qwen/Qwen3-1.7B", "nvlink"),
        ("l40s-2b", "Qwen/Qwen3-1.7B", "pcie"),
        ("h100-8b", "meta-llama/Llama-3.1-8B", "nvlink"),
        ("4090-8b", "meta-llama/Llama-3.1-8B", "pcie"),
    ],
)
@pytest.mark.parametrize("sequences", [4, 32])
def test_four_gpus_tell_what_one_of_them_does(name: str, model: str, link: str, sequences: int) -> None:
    """A decoding step of each sequence with 500 tokens of context."""
    gpu = PRESETS[name]
    measured = widen(law_of(split(gpu, 4, link)), common=0.02, each=0.02, count=8, seed=1)

    moved = move_law(measured, config_of(gpu, model, 4), config_of(gpu, model, 1))

    true_s = law_of(gpu).seconds(sequences, sequences, 500 * sequences)
    assert moved.law.seconds(sequences, sequences, 500 * sequences) == pytest.approx(true_s, rel=WITHIN)
    shortest, longest = moved.interval("step_us")
    assert longest / shortest > 1.3  # the data sheet is less certain than the measurement


def test_the_same_hardware_keeps_the_law() -> None:
    gpu = PRESETS["h100-8b"]
    same = config_of(gpu, "meta-llama/Llama-3.1-8B", 1)
    measured = widen(law_of(gpu), common=0.0, each=0.0, count=2, seed=1)

    assert move_law(measured, same, same).law == measured.law


def test_launching_a_large_step_takes_the_host_as_long_on_any_card() -> None:
    slow, fast = (
        ServeConfig(setting={}, card=find_gpu(name), model=find_model("meta-llama/Llama-3.1-8B"))
        for name in ("A100 80GB", "H100")
    )
    law = StepLaw(step_us=11_000, knee=100, token_us=60.0, launch_tokens=600)

    moved = move_law(widen(law, common=0.0, each=0.0, count=1, seed=1), slow, fast).law

    assert moved.seconds(513, 1, 0) == pytest.approx(law.seconds(513, 1, 0), rel=0.01)
    assert moved.seconds(512, 1, 0) < law.seconds(512, 1, 0)


def test_an_unknown_card_has_no_ratio() -> None:
    gpu = PRESETS["h100-8b"]
    known = config_of(gpu, "meta-llama/Llama-3.1-8B", 1)
    measured = widen(law_of(gpu), common=0.0, each=0.0, count=1, seed=1)

    with pytest.raises(PredictionInputError, match="GPU is unknown"):
        move_law(measured, known, replace(known, card=None))
