"""Recordings of vLLM on GPUs at several limits of its scheduler: what clients measured, and the log of steps.

tests/data/gpu/*.json.gz. Of a request: arrival, prompt and output tokens, TTFT and mean time between tokens
(None: not ended in time). Of a step: the second of its line in the log after the first one of the setting,
requests and tokens of prompts, decoding requests, and the elapsed milliseconds.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flettner.performance_model.resample import with_cached_share
from flettner.performance_model.trace import Trace, TraceRequest
from flettner.vllm_facts.models.lookup import from_config
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.values import Setting

DATA = Path(__file__).parents[2] / "data" / "gpu"
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 32768,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}
"""Of the recorded model; the vocabulary is smaller than that of Qwen/Qwen3-8B."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedSetting:
    """One setting of a sweep."""

    row: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.row['max_num_seqs']}-{self.row['max_num_batched_tokens']}"

    def config(self, gpu: str) -> ServeConfig:
        names = ("max_num_seqs", "max_num_batched_tokens")
        setting: Setting = {"model": "q8b", "max_model_len": 8192, **{name: self.row[name] for name in names}}
        return ServeConfig(
            setting=setting, card=find_gpu(gpu), model=from_config(QWEN3_8B, "q8b"), version="0.25.1"
        )

    @property
    def measured(self) -> dict[str, float]:
        return dict(self.row["measured"])

    @property
    def cached_share(self) -> float:
        """Of the prompts, by vLLM's metrics."""
        return float(self.row["cached_share"])

    def trace(self) -> Trace:
        requests = tuple(
            TraceRequest(arrival_s=at_s, prompt_tokens=prompt, output_tokens=wanted)
            for at_s, prompt, wanted, _, _ in self.row["requests"]
        )
        return with_cached_share(requests, self.cached_share)

    def log(self) -> Iterator[str]:
        """As vLLM 0.25 writes it."""
        for place, (at_s, prefills, tokens, decodes, elapsed_ms) in enumerate(self.row["steps"]):
            clock_s = self.row["first_s"] + at_s
            yield (
                f"INFO 11-26 17:{clock_s // 60:02}:{clock_s % 60:02} [core.py:452] "
                f"Iteration({self.row['first_step'] + place}): {prefills} context requests, {tokens} context "
                f"tokens, {decodes} generation requests, {decodes} generation tokens, "
                f"iteration elapsed time: {elapsed_ms:.2f} ms"
            )


@dataclass(frozen=True, slots=True, eq=False)
class RecordedSweep:
    gpu: str
    head: tuple[str, ...]  # lines of the log from before the first step
    settings: tuple[RecordedSetting, ...]

    def log(self, settings: Sequence[RecordedSetting]) -> list[str]:
        return [*self.head, *(line for setting in settings for line in setting.log())]


@cache
def read_sweep(name: str) -> RecordedSweep:
    data = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))
    settings = tuple(RecordedSetting(row) for row in data["settings"])
    return RecordedSweep(gpu=data["gpu"], head=tuple(data["head"]), settings=settings)
