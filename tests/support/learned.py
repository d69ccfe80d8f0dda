"""A learned model of a server whose law is known: Llama 3.1 8B on an RTX 4090, under Poisson traffic."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from flettner.agent.prediction.learned import LearnedModel
from flettner.performance_model.acceptance import Acceptance
from flettner.performance_model.step_law import StepLaw, widen
from flettner.performance_model.trace import TraceRequest
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.values import Value
from tests.support.fast_time import NOON

LAW = StepLaw(step_us=18_000, knee=111, token_us=88.0, sequence_us=40.0, kv_read_us=0.14)
MODEL = "meta-llama/Llama-3.1-8B"
KV_TOKENS = 41_408


def requests_at(
    rate: float, *, seconds: float = 300.0, prompt: int = 500, output: int = 200, seed: int = 1
) -> tuple[TraceRequest, ...]:
    """Poisson arrivals with lognormal lengths of these medians, in tokens."""
    random, at, made = Random(seed), 0.0, []  # noqa: S311 - reproducible, not secret
    while (at := at + random.expovariate(rate)) < seconds:
        made.append(
            TraceRequest(
                arrival_s=at,
                prompt_tokens=max(1, round(random.lognormvariate(0, 0.8) * prompt)),
                output_tokens=max(1, round(random.lognormvariate(0, 0.8) * output)),
            )
        )
    return tuple(made)


def deployment(setting: Mapping[str, Value]) -> ServeConfig:
    flags = {"model": MODEL, "max_model_len": 8192, "gpu_memory_utilization": 0.9, **setting}
    return ServeConfig(setting=flags, card=find_gpu("RTX 4090"), model=find_model(MODEL))


def learned_model(rate: float = 2.0, *, seconds: float = 300.0, **setting: Value) -> LearnedModel:
    """An accepted law, 3 % off on tokens and 12 % on TTFT."""
    return LearnedModel(
        target="chat",
        server="chat-r0",
        config=deployment(setting),
        fitted_at=NOON,
        trace=requests_at(rate, seconds=seconds),
        counts_from="records",
        kv_tokens=KV_TOKENS,
        law=widen(LAW, common=0.03, each=0.02, count=8, seed=1),
        law_source="iteration log",
        rows=500,
        acceptance=Acceptance(itl=(0.03,) * 5, ttft=(-0.12,) * 5),
    )


def without_law(learned: LearnedModel) -> LearnedModel:
    return replace(learned, law=None, law_source="", acceptance=None, why_no_law="only 3 windows of steps")
