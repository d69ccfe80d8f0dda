"""Whether a queue empties by itself, and in what time."""

from dataclasses import replace
from math import inf

import pytest

from flettner.agent.domain.reading import Health, Reading, Workload
from flettner.agent.machine.backlog import emptied_in_s, why_not_now
from flettner.policies.conformance.readings import a_reading, rising


def queue(early: float, late: float, *, ended: float = 60, now: float = 0.5, lasting: float = 0.5) -> Reading:
    """Thirty seconds in which `ended` requests ended; `now` and `lasting` arrived in a second."""
    work = Workload(arrivals_per_s=now, lasting_arrivals_per_s=lasting)
    reading = a_reading(running=40.0, waiting=rising(early, late), work=work)
    return replace(reading, health=Health(ended={"stop": ended}))


@pytest.mark.parametrize(
    ("reading", "left_s"),
    [
        pytest.param(queue(500, 480), 320, id="a peak is over"),
        pytest.param(queue(500, 480, lasting=4), 320, id="the last minutes hold the peak"),
        pytest.param(queue(500, 480, lasting=1.8), 320, id="they hold its end"),
        pytest.param(queue(30, 0), 0, id="it has just emptied"),
        pytest.param(queue(480, 500, now=2.5), inf, id="it grows"),
        pytest.param(queue(500, 480, now=1.8, lasting=1.9), inf, id="as much arrives as ends"),
        pytest.param(queue(500, 480, now=1.2, lasting=4), inf, id="a lull between bursts"),
        pytest.param(queue(10, 8), inf, id="too short to be of an earlier load"),
        pytest.param(queue(500, 480, ended=0), inf, id="nothing ends"),
        pytest.param(replace(queue(500, 480), work=Workload()), inf, id="not measured"),
    ],
)
def test_a_queue_is_empty_in(reading: Reading, left_s: float) -> None:
    assert emptied_in_s(reading) == left_s


def test_a_queue_that_is_soon_empty_needs_no_change() -> None:
    assert why_not_now(queue(500, 480)) == (
        "the queue of an earlier load empties by itself in about 5 min: 2 requests/s end, 0.5 arrive"
    )
    assert not why_not_now(queue(5000, 4980))
    assert not why_not_now(queue(480, 500, now=2.5))


def test_a_window_in_which_the_load_fell_is_no_evidence_of_a_queue() -> None:
    why = "the load fell from 5 to 2.5 requests/s: its queue may empty by itself"

    assert why_not_now(queue(500, 495, now=2.5, lasting=5)) == why
    assert not why_not_now(queue(400, 500, now=2.5, lasting=5))
    assert not why_not_now(queue(500, 495, now=2.6, lasting=5))
    assert not why_not_now(queue(0, 0, now=2.5, lasting=5))
