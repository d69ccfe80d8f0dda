"""Traces: their file, and loads made from them."""

from dataclasses import replace

import pytest

from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.resample import bootstrap, scale_prompts, scale_rate, window, with_redraws
from flettner.performance_model.trace import TraceRequest, duration_s, read_trace, write_trace

HEADER = '{"flettner_trace": 1}'
TRACE = tuple(
    TraceRequest(
        arrival_s=0.5 * i, prompt_tokens=100 + i, output_tokens=10, cached_tokens=i, prefix_group="a"
    )
    for i in range(240)
)


def test_a_written_trace_is_read_back() -> None:
    assert read_trace(write_trace(TRACE)) == TRACE


def test_requests_are_sorted_by_arrival() -> None:
    rows = [
        '{"arrival_s": 2, "prompt_tokens": 1, "output_tokens": 1}',
        '{"arrival_s": 1, "prompt_tokens": 2, "output_tokens": 1}',
    ]

    assert [request.arrival_s for request in read_trace([HEADER, "", *rows])] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "t: holds no request"),
        ([HEADER], "t: holds no request"),
        (['{"arrival_s": 0}'], "t:1: the first line must be the header"),
        (['{"flettner_trace": 2}'], "t:1: format 2 of a trace"),
        ([HEADER, "x"], "t:2: not JSON"),
        ([HEADER, "[]"], "t:2: not a JSON object"),
        ([HEADER, '{"arrival_s": -1, "prompt_tokens": 1, "output_tokens": 1}'], "t:2: arrival_s -1"),
        ([HEADER, '{"arrival_s": NaN, "prompt_tokens": 1, "output_tokens": 1}'], "t:2: arrival_s nan"),
        ([HEADER, '{"arrival_s": 0, "prompt_tokens": 0, "output_tokens": 1}'], "t:2: prompt_tokens 0"),
        ([HEADER, '{"arrival_s": 0, "prompt_tokens": 1}'], "t:2: output_tokens None"),
        ([HEADER, '{"arrival_s": 0, "prompt_tokens": true, "output_tokens": 1}'], "t:2: prompt_tokens True"),
        (
            [HEADER, '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "prompt": "hello"}'],
            "t:2: unknown field prompt",
        ),
        (
            [HEADER, '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "cached_tokens": 2}'],
            "t:2: cached_tokens exceeds prompt_tokens 1",
        ),
    ],
)  # fmt: skip
def test_a_fault_is_reported_with_its_line(lines: list[str], complaint: str) -> None:
    with pytest.raises(PredictionInputError) as caught:
        read_trace(lines, "t")

    assert str(caught.value).startswith(complaint)


def test_a_higher_rate_shortens_the_gaps() -> None:
    assert duration_s(scale_rate(TRACE, 2.0)) == duration_s(TRACE) / 2


def test_longer_prompts_share_more() -> None:
    assert [(request.prompt_tokens, request.cached_tokens) for request in scale_prompts(TRACE[7:8], 2.0)] == [
        (214, 14)
    ]


def test_a_window_begins_at_0() -> None:
    assert [request.arrival_s for request in window(TRACE, 10.0, 1.0)] == [0.0, 0.5]


def test_the_same_seed_draws_the_same_load() -> None:
    assert bootstrap(TRACE, 1) == bootstrap(TRACE, 1) != bootstrap(TRACE, 2)


def test_drawn_loads_keep_the_rate_and_the_order() -> None:
    drawn = [bootstrap(TRACE, seed) for seed in range(50)]
    arrivals = [[request.arrival_s for request in trace] for trace in drawn]

    assert all(sorted(times) == times for times in arrivals)
    assert sum(map(len, drawn)) / 50 == pytest.approx(len(TRACE), rel=0.02)
    assert sum(request.prompt_tokens for trace in drawn for request in trace) / sum(
        map(len, drawn)
    ) == pytest.approx(sum(request.prompt_tokens for request in TRACE) / len(TRACE), rel=0.05)


def test_a_small_load_is_redrawn_and_a_large_one_is_not() -> None:
    assert with_redraws(TRACE)[0] == TRACE
    assert len(with_redraws(TRACE[:400])) == 9
    assert len(with_redraws(TRACE[:1] * 4001)) == 1


def test_a_redraw_without_a_request_is_left_out() -> None:
    sparse = (
        TraceRequest(arrival_s=0.0, prompt_tokens=8, output_tokens=8),
        replace(TRACE[0], arrival_s=90.0),
    )

    assert all(with_redraws(sparse))
