"""Recorded runs of vLLM 0.19 on two GPUs, and the law of step time from the kernel profiles of each."""

import json
from pathlib import Path
from typing import Any

from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.step_law import StepLaw
from flettner.performance_model.trace import TraceRequest

DATA: dict[str, Any] = json.loads(Path(__file__).with_name("llmservingsim.json").read_text())
GPUS = tuple(DATA["runs"])


def recorded_trace() -> tuple[TraceRequest, ...]:
    """300 requests of ShareGPT at 10 a second."""
    return tuple(
        TraceRequest(
            arrival_s=arrival,
            prompt_tokens=prompt,
            output_tokens=output,
            cached_tokens=shared,
            prefix_group="" if group < 0 else str(group),
        )
        for arrival, prompt, output, shared, group in DATA["requests"]
    )


def recorded_law(gpu: str) -> StepLaw:
    return StepLaw(**DATA["runs"][gpu]["law"])


def recorded_limits(gpu: str) -> EngineLimits:
    return EngineLimits(**DATA["runs"][gpu]["limits"])


def measured(gpu: str) -> dict[str, float]:
    return dict(DATA["runs"][gpu]["measured"])
