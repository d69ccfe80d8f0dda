"""Loads from the options of `vllm bench serve`."""

import json
from itertools import pairwise
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import pytest

from flettner.agent.domain.errors import ConfigError
from flettner.tools.tuning.bench_options import BenchOptions


def test_lengths_lie_around_the_given_ones_and_arrivals_have_the_rate() -> None:
    trace = BenchOptions(
        num_prompts=2000, request_rate=5, random_input_len=100, random_output_len=40, random_range_ratio=0.5
    ).build()

    assert {request.prompt_tokens for request in trace} == set(range(50, 151))
    assert {request.output_tokens for request in trace} == set(range(20, 61))
    assert len(trace) / trace[-1].arrival_s == pytest.approx(5, rel=0.1)


def test_a_smaller_burstiness_makes_the_gaps_more_unequal() -> None:
    spreads = []
    for burstiness in (0.25, 1.0, 100.0):
        trace = BenchOptions(num_prompts=2000, burstiness=burstiness).build()
        gaps = [b.arrival_s - a.arrival_s for a, b in pairwise(trace)]
        spreads.append(pstdev(gaps) / mean(gaps))

    assert spreads == pytest.approx([2.0, 1.0, 0.1], rel=0.15)


def test_a_prefix_is_shared_by_all_prompts() -> None:
    first, *_ = BenchOptions(random_input_len=100, random_prefix_len=300).build()

    assert (first.prompt_tokens, first.cached_tokens, first.prefix_group) == (400, 300, "prefix")


def test_sharegpt_gives_the_lengths_of_the_first_two_turns(tmp_path: Path) -> None:
    file = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "x" * 400}, {"from": "gpt", "value": "y" * 80}]
    short = [{"from": "human", "value": "x" * 400}, {"from": "gpt", "value": "y"}]
    file.write_text(json.dumps([{"conversations": turns}, {"conversations": short}, {"conversations": []}]))
    trace = BenchOptions(dataset_name="sharegpt", dataset_path=file, num_prompts=3).build()

    assert [(request.prompt_tokens, request.output_tokens) for request in trace] == [(100, 20)] * 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dataset_name": "sonnet"}, "one of random, sharegpt"),
        ({"dataset_name": "sharegpt"}, "--dataset-path"),
        ({"request_rate": float("inf")}, "no load that a server is tuned for"),
        ({"random_range_ratio": 1.0}, "--random-range-ratio"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        BenchOptions(**options).build()
