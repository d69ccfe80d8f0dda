"""A load from the options of `vllm bench serve`: their names, defaults and meaning, as of vLLM 0.32.

Differences: only what decides the load; `sharegpt` counts four characters as a token where vLLM asks the
tokenizer; `--request-rate` has no default, since all requests at once are no load that a server is tuned for.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from flettner.agent.domain.errors import ConfigError
from flettner.performance_model.trace import TraceRequest
from flettner.primitives.files import read_file

DATASETS = ("random", "sharegpt")
_CHARACTERS = 4  # a token of English text, in most tokenizers 3.5 to 4.5
_LEAST_TOKENS, _MOST_PROMPT, _MOST_TOTAL = 4, 1024, 2048  # requests that vLLM leaves out of ShareGPT
_MAX_FILE = 2 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Lengths in tokens. `request_rate`: requests per second. `burstiness`: shape of the gamma distribution
    of the gaps, 1 is Poisson, smaller is burstier."""

    dataset_name: str = "random"
    dataset_path: Path | None = None
    num_prompts: int = 1000
    request_rate: float = 1.0
    burstiness: float = 1.0
    seed: int = 0
    random_input_len: int = 1024
    random_output_len: int = 128
    random_range_ratio: float = 0.0
    random_prefix_len: int = 0
    sharegpt_output_len: int | None = None

    def __post_init__(self) -> None:
        if self.dataset_name not in DATASETS:
            raise ConfigError(f"--dataset-name {self.dataset_name}: one of {', '.join(DATASETS)}")
        if not 0 < self.request_rate < float("inf"):
            raise ConfigError(
                f"--request-rate {self.request_rate:g}: must be a number of requests a second, such as 4; "
                "vLLM's default, all at once, is no load that a server is tuned for"
            )
        if self.num_prompts < 1 or self.burstiness <= 0 or not 0 <= self.random_range_ratio < 1:
            raise ConfigError(
                "--num-prompts must be at least 1, --burstiness above 0, --random-range-ratio in 0..1"
            )
        if min(self.random_input_len, self.random_output_len) < 1 or self.random_prefix_len < 0:
            raise ConfigError("--random-input-len and --random-output-len must be at least 1")

    def build(self) -> tuple[TraceRequest, ...]:
        """Build the trace. Raises ConfigError if the data set cannot be read."""
        random = Random(f"bench:{self.seed}")  # noqa: S311 - reproducible, not secret
        pairs = self._sharegpt(random) if self.dataset_name == "sharegpt" else self._random(random)
        made, at = [], 0.0
        for prompt, output in pairs:
            at += random.gammavariate(self.burstiness, 1 / (self.request_rate * self.burstiness))
            shared = self.random_prefix_len if self.dataset_name == "random" else 0
            made.append(
                TraceRequest(
                    arrival_s=at,
                    prompt_tokens=shared + prompt,
                    output_tokens=output,
                    cached_tokens=shared,
                    prefix_group="prefix" if shared else "",
                )
            )
        return tuple(made)

    def _random(self, random: Random) -> Iterator[tuple[int, int]]:
        for _ in range(self.num_prompts):
            yield (
                _around(self.random_input_len, self.random_range_ratio, random),
                _around(self.random_output_len, self.random_range_ratio, random),
            )

    def _sharegpt(self, random: Random) -> list[tuple[int, int]]:
        if self.dataset_path is None:
            raise ConfigError("--dataset-name sharegpt: give its JSON file with --dataset-path")
        lengths = [
            (prompt, self.sharegpt_output_len or output)
            for prompt, output in _conversations(self.dataset_path)
            if prompt >= _LEAST_TOKENS
            and (self.sharegpt_output_len or output >= _LEAST_TOKENS)
            and prompt <= _MOST_PROMPT
            and prompt + output <= _MOST_TOTAL
        ]
        if not lengths:
            raise ConfigError(f"--dataset-path {self.dataset_path}: holds no conversation of two turns")
        random.shuffle(lengths)
        times = -(-self.num_prompts // len(lengths))
        return (lengths * times)[: self.num_prompts]


def _around(length: int, ratio: float, random: Random) -> int:
    return max(1, random.randint(int(length * (1 - ratio)), int(length * (1 + ratio))))


def _conversations(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the tokens of the first two turns of each conversation."""
    try:
        rows = json.loads(read_file(path, _MAX_FILE))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--dataset-path {path}: cannot be read as JSON: {error}") from error
    for row in rows if isinstance(rows, list) else ():
        turns = row.get("conversations") if isinstance(row, Mapping) else None
        if isinstance(turns, list) and len(turns) > 1:
            yield _tokens(turns[0]), _tokens(turns[1])


def _tokens(turn: Any) -> int:  # noqa: ANN401 - of a file
    text = turn.get("value") if isinstance(turn, Mapping) else ""
    return len(str(text)) // _CHARACTERS
