"""The time outside of the engine, from what vLLM counted."""

from array import array

import pytest

from flettner.agent.domain.reading import Buckets
from flettner.agent.prediction.lesson import time_outside
from flettner.agent.prediction.recording import Minute, Recording, RequestColumns, Sums

MINUTE_S = 60.0


def mean(seconds: float, count: float = 10.0) -> Buckets:
    return Buckets((100.0,), (count, 0.0), seconds * count)


def recording(sums: Sums) -> Recording:
    minute = Minute(
        begin_s=0.0,
        end_s=MINUTE_S,
        sums=sums,
        arrivals_s=array("d"),
        histogram_rows=b"",
        logged_rows=(),
        busy=(),
        steady=True,
    )
    return Recording(minutes=(minute,), requests=RequestColumns())


def test_a_growing_queue_is_not_outside() -> None:
    """Recorded on an H100: a TTFT of 3.72 s of those that began, a queue of 3.36 s of those that ended."""
    grows = Sums(
        ttft=mean(3.7164, 100),
        queue=mean(3.3559, 92),
        prefill=mean(0.0189, 92),
        e2e=mean(4.4388, 92),
        inference=mean(1.0753, 92),
    )

    assert time_outside(recording(grows), "histograms") == pytest.approx(0.0076)


def test_without_the_histograms_nothing_is_known() -> None:
    assert time_outside(recording(Sums(ttft=mean(0.1), queue=mean(0.01))), "histograms") == 0.0
