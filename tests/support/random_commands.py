"""Random `vllm serve` command lines over known and unknown models, the same for the same seed."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.models.table import LINES
from flettner.vllm_facts.serve_config import Model, ServeConfig
from flettner.vllm_facts.shell_command.serve_command import ServeCommand, parse_command
from flettner.vllm_facts.sizing.gpus import find_gpu

UNKNOWN = ("acme/assistant-13b", "/models/finetune", "someone/gemma-clone")
SUFFIXES = ("", "", "", "-AWQ", "-FP8", "-GPTQ-Int4")
CARDS = ("", "T4", "V100", "A10", "L40S", "RTX 4090", "A100 80GB", "H100", "H200", "B200", "MI300X")
VERSIONS = ("", "0.11.0", "0.14.0", "0.19.0", "0.32.0", "0.32.0", "0.32.0")
PROFILES = ("", "", "chat", "api", "batch", "rag", "wide-ep")
COUNTS = (1, 2, 3, 4, 7, 8, 16)
SWITCHES = (
    *("enable-expert-parallel", "enforce-eager", "enable-prefix-caching", "enable-chunked-prefill"),
    *("no-enable-chunked-prefill", "no-enable-prefix-caching", "async-scheduling", "enable-lora"),
    *("enable-eplb", "enable-sleep-mode", "disable-log-stats", "enable-auto-tool-choice", "enable-dbo"),
)
VALUES: dict[str, tuple[object, ...]] = {
    "tensor-parallel-size": COUNTS,
    "pipeline-parallel-size": (1, 2, 3),
    "data-parallel-size": (1, 2, 8),
    "decode-context-parallel-size": (1, 2, 4),
    "gpu-memory-utilization": (0.3, 0.8, 0.9, 0.95),
    "max-num-seqs": (1, 16, 256, 1024),
    "max-num-batched-tokens": (64, 512, 2048, 16384),
    "max-model-len": (512, 4096, 32768, 262144, "auto"),
    "dtype": ("auto", "bfloat16", "half", "float32"),
    "quantization": ("awq", "fp8", "gptq_marlin", "mxfp4"),
    "kv-cache-dtype": ("auto", "fp8", "fp8_e5m2", "nvfp4", "bfloat16"),
    "attention-backend": ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"),
    "max-lora-rank": (8, 48, 64),
    "max-loras": (1, 8),
    "max-cpu-loras": (4,),
    "long-prefill-token-threshold": (8192,),
    "cpu-offload-gb": (8,),
    "kv-offloading-size": (8,),
    "speculative-config": ('{"method":"ngram","num_speculative_tokens":4}',),
    "max-cudagraph-capture-size": (64,),
    "all2all-backend": ("deepep_low_latency", "allgather_reducescatter"),
}


def random_cases(seed: int, count: int) -> Iterator[tuple[ServeCommand, ServeConfig]]:
    """`count` command lines as they are typed, each with what a user says of its host."""
    draw = Random(seed)  # noqa: S311 - a sample of tests, not a secret
    names = sorted(LINES)
    for _ in range(count):
        name = draw.choice(UNKNOWN) if draw.random() < 0.2 else draw.choice(names) + draw.choice(SUFFIXES)
        command = parse_command(shlex.split(_line(draw, name)))
        yield (
            command,
            ServeConfig(
                setting={**command.setting, **command.exposure},
                card=find_gpu(draw.choice(CARDS)),
                gpus=draw.choice((None, 1, 2, 4, 8)),
                model=_model(draw, name),
                version=draw.choice(VERSIONS),
                profile=draw.choice(PROFILES),
                concurrency=draw.choice((None, None, 4.0, 600.0)),
            ),
        )


def _line(draw: Random, name: str) -> str:
    words = [f"vllm serve {name}"]
    words += [f"--{flag}" for flag in draw.sample(SWITCHES, draw.choice((0, 0, 1, 2)))]
    for flag in draw.sample(sorted(VALUES), draw.randint(0, 5)):
        value = str(draw.choice(VALUES[flag]))
        words.append(f"--{flag} {shlex.quote(value)}")
    return " ".join(words)


def _model(draw: Random, name: str) -> Model | None:
    """The facts of the name, sometimes with the shapes that only a config.json tells."""
    model = find_model(name)
    if model is None or draw.random() < 0.7:
        return model
    wide = draw.choice((768, 1408, 1536, 2048)) if model.experts else None
    block = (128, 128) if model.quantization == "fp8" else None
    inner = draw.choice((9728, 11008, 14336))
    return replace(model, intermediate=inner, weight_block=block, moe_intermediate=wide)


def describe(command: ServeCommand, case: ServeConfig) -> str:
    """A case in words, to be read where a test fails."""
    facts = {"gpu": case.card and case.card.name, "gpus": case.gpus, "version": case.version}
    return f"{shlex.join(command.words)} {json.dumps(facts)} {case.model}"
