"""Prompt lengths and draft acceptance derived from two metrics pages, as from a Prometheus."""

import pytest

from flettner.tools.advisor.histograms import ENOUGH, series
from tests.unit.sensors.pages import PAGE

EDGES = (100.0, 1000.0, 10_000.0)


def histogram(name: str, *counts: int, engine: int = 0) -> str:
    """`counts` per bucket; the last is above all edges."""
    lines, seen = [], 0
    for edge, count in zip((*map(str, EDGES), "+Inf"), counts, strict=True):
        seen += count
        lines.append(
            f'vllm:request_{name}_tokens_bucket{{engine="{engine}",le="{edge}",model_name="m"}} {seen}'
        )
    return "\n".join(lines) + "\n"


def page(*parts: str) -> bytes:
    return "".join(parts).encode()


def test_shows_long_prompts_among_short_ones() -> None:
    first = page(histogram("prompt", 1000, 0, 0, 0), histogram("generation", 1000, 0, 0, 0))
    last = page(histogram("prompt", 1080, 0, 20, 0), histogram("generation", 1100, 0, 0, 0))

    assert series(first, last) == {
        "prompt_tokens_p50": pytest.approx(62.5),
        "prompt_tokens_p99": pytest.approx(9550.0),
        "request_tokens_p99": pytest.approx(9649.0),
    }


def test_counts_since_the_start_if_few_requests_lie_between_the_scrapes() -> None:
    first = page(histogram("prompt", 100, 0, 0, 0))
    last = page(histogram("prompt", 100, 0, ENOUGH - 1, 0))

    assert series(first, last)["prompt_tokens_p99"] > 1000


def test_sums_all_engines() -> None:
    both = page(histogram("prompt", 10, 0, 0, 0), histogram("prompt", 0, 0, 10, 0, engine=1))

    assert series(b"", both)["prompt_tokens_p50"] == pytest.approx(100.0)


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(page(histogram("prompt", 5, 0, 0, 0)), id="five requests"),
        pytest.param(b'vllm:request_prompt_tokens_bucket{le="x"} 3\n', id="no edge"),
    ],
)
def test_omits_unknown_values(last: bytes) -> None:
    assert series(last, last) == {}


def test_reads_prompt_lengths_from_real_vllm_metrics() -> None:
    assert series(PAGE, PAGE)["prompt_tokens_p50"] > 0
