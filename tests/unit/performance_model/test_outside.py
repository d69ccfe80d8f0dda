"""What passes outside of the engine, and whether a step is planned while another one runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from flettner.performance_model.band import Band
from flettner.performance_model.engine_settings import plans_ahead
from flettner.performance_model.outcome import Goals
from flettner.performance_model.outside import OUTSIDE, cached_share, outside_of_page
from flettner.performance_model.prediction import add_outside
from flettner.performance_model.resample import with_cached_share
from flettner.performance_model.trace import TraceRequest
from flettner.vllm_facts.metrics.page_totals import HistogramTotals, PageTotals
from flettner.vllm_facts.metrics.totals import totals
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu

PAGE = totals((Path(__file__).parents[2] / "support" / "scrapes" / "vllm-0.32-later.txt").read_bytes())


def with_means(page: PageTotals, **means_s: float) -> PageTotals:
    """With ten requests that took so long on average."""
    inf = float("inf")
    changed = {name: HistogramTotals((inf,), (10.0,), 10 * mean_s) for name, mean_s in means_s.items()}
    return replace(page, histograms={**page.histograms, **changed})


def test_what_is_neither_queue_nor_inference_is_outside() -> None:
    page = with_means(PAGE, e2e=5.0, queue=3.0, inference=1.98, itl=0.01)

    outside = outside_of_page(page)

    assert outside is not None
    assert outside.value == pytest.approx(0.015)  # half a step is the wait for its end
    assert outside.low == outside.value == outside.high


def test_a_page_without_requests_tells_nothing() -> None:
    empty = replace(PAGE, histograms={}, counters={})

    assert outside_of_page(empty) is None
    assert cached_share(empty) == 0.0


def test_the_cached_share_makes_prompts_shorter_to_compute() -> None:
    page = replace(PAGE, counters={"prompt_tokens": 1000.0, "cached_tokens": 250.0})
    trace = (TraceRequest(arrival_s=0.0, prompt_tokens=400, output_tokens=1),)
    measured = (replace(trace[0], cached_tokens=16, prefix_group="a"),)

    assert with_cached_share(trace, cached_share(page))[0].cached_tokens == 100
    assert with_cached_share(measured, cached_share(page)) == measured
    assert with_cached_share(trace, 0.0) == trace


def test_clients_see_the_time_outside_in_the_first_token_and_the_end() -> None:
    band = Band(value=1.0, low=0.9, high=1.2)

    seen = add_outside({"ttft_p90_s": band, "e2e_p50_s": band, "itl_p50_s": band}, OUTSIDE)

    assert seen["ttft_p90_s"] == seen["e2e_p50_s"] == Band(value=1.008, low=0.904, high=1.216)
    assert seen["itl_p50_s"] == band
    assert Goals(ttft_s=0.5, itl_s=0.05).inside(0.1) == Goals(ttft_s=0.4, itl_s=0.05)


@pytest.mark.parametrize(
    ("given", "is_ahead"),
    [
        ({}, True),
        ({"version": "0.13.0"}, False),
        ({"card": None}, False),
        ({"setting": {"async_scheduling": False}}, False),
        ({"setting": {"pipeline_parallel_size": 2}}, False),
        ({"log": ("INFO [vllm.py:1042] Asynchronous scheduling is disabled.",)}, False),
        ({"log": ("INFO [vllm.py:1042] Asynchronous scheduling is enabled.",), "card": None}, True),
    ],
)
def test_vllm_plans_a_step_early_on_gpus(given: dict[str, object], is_ahead: bool) -> None:
    case = ServeConfig(setting={}, card=find_gpu("H100"), version="0.25.1")

    assert plans_ahead(replace(case, **given)) is is_ahead  # type: ignore[arg-type]
