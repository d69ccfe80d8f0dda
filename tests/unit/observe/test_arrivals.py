"""When a window is evidence: arrivals and prompts decide, not the queue."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from flettner.agent.domain.reading import Buckets, EngineSample
from flettner.agent.observe.aggregator import Aggregator
from flettner.agent.observe.arrivals import begun_rate, choose_span, count_arrivals, find_shift, lasting_rate

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SPAN_S = 30.0


def scrapes(
    arriving: list[int], *, served: int = 10**6, prompts: list[int] | None = None
) -> list[EngineSample]:
    """One scrape a second; at most `served` requests end in each."""
    present, samples = 0, []
    lengths = prompts or [200] * len(arriving)
    for second, (count, length) in enumerate(zip(arriving, lengths, strict=True), start=1):
        ended = min(served, present)
        present += count - ended
        samples.append(
            EngineSample(
                at=NOON + timedelta(seconds=second),
                server="r0",
                interval_s=1.0,
                running=min(present, 4),
                waiting=max(0, present - 4),
                prompt_tokens=count * length,
                finished={"stop": float(ended)},
                ttft=Buckets((1.0,), (float(count), 0.0), 0.1 * count),
            )
        )
    return samples


def shift(samples: list[EngineSample]) -> str:
    window = samples[-int(SPAN_S) :]
    return find_shift(window, count_arrivals(window, span_s=SPAN_S), span_s=SPAN_S)


def poisson(rate: float, seconds: int, seed: int = 1) -> list[int]:
    random = Random(seed)  # noqa: S311 - simulation, not cryptography
    counts, at_s = [0] * seconds, random.expovariate(rate)
    while at_s < seconds:
        counts[int(at_s)] += 1
        at_s += random.expovariate(rate)
    return counts


@pytest.mark.parametrize("rate", [0.5, 2, 5, 30])
def test_constant_arrivals_are_stationary(rate: float) -> None:
    shifts = [shift(scrapes(poisson(rate, 30, seed))) for seed in range(100)]

    assert sum(map(bool, shifts)) <= 3


def test_a_growing_queue_is_no_change_of_load() -> None:
    samples = scrapes(poisson(5, 40), served=1)

    assert samples[-1].waiting > 100
    assert shift(samples) == ""


@pytest.mark.parametrize(
    ("arriving", "why"),
    [
        pytest.param([0] * 20 + poisson(5, 20), "the load began 20 s ago", id="idle before"),
        pytest.param(poisson(3, 15) + poisson(15, 15), "the load changed", id="five times more"),
        pytest.param(poisson(15, 15) + poisson(3, 15), "the load changed", id="five times less"),
        pytest.param(poisson(5, 20) + [0] * 10, "the load changed", id="the load has ended"),
    ],
)
def test_a_window_over_a_change_of_load_is_none(arriving: list[int], why: str) -> None:
    assert shift(scrapes(arriving)).startswith(why)


def test_bursts_and_slow_ramps_do_not_block() -> None:
    bursts = [40 if second in {3, 8, 17, 22, 27} else 0 for second in range(30)]
    ramp = [round(5 + second / 30) for second in range(30)]

    assert shift(scrapes(bursts)) == ""
    assert shift(scrapes(ramp)) == ""


def test_longer_prompts_in_one_half_are_another_load() -> None:
    lengths = [200 + second % 3 for second in range(15)] + [1500 + second % 3 for second in range(15)]

    assert shift(scrapes([4] * 30, prompts=lengths)) == (
        "the prompts changed within the last 30 s, from 201 to 1501 tokens"
    )


def test_a_restart_and_unknown_arrivals() -> None:
    steady = scrapes([4] * 30)
    interrupted = [*steady[:15], replace(steady[15], interval_s=0.0), *steady[16:]]
    restarted = [*steady[:15], replace(steady[15], interval_s=0.0, restarted=True), *steady[16:]]
    uncounted = [replace(sample, missing=frozenset({"request_success"})) for sample in steady]

    assert shift(restarted) == "the server restarted within the last 30 s"
    assert shift(interrupted) == "the metrics of the server were interrupted within the last 30 s"
    assert count_arrivals(uncounted, span_s=SPAN_S) is None
    assert shift(uncounted) == ""


@pytest.mark.parametrize(
    ("arriving", "span_s"),
    [
        pytest.param(poisson(5, 240), 30, id="enough requests"),
        pytest.param(poisson(0.5, 240), 60, id="few requests: longer"),
        pytest.param(poisson(0.02, 240), 30, id="hardly any: the server is idle"),
        pytest.param([0] * 200 + poisson(0.5, 40), 30, id="not beyond the begin of the load"),
        pytest.param(poisson(0.2, 25), 30, id="not beyond the first scrape"),
    ],
)
def test_a_window_with_few_requests_is_longer(arriving: list[int], span_s: float) -> None:
    samples = scrapes(arriving)

    assert choose_span(samples, at=samples[-1].at, least_s=30, most_s=240) == span_s


def test_the_reading_says_why_it_is_no_evidence() -> None:
    fold = Aggregator()
    for sample in scrapes([0] * 20 + poisson(5, 20)):
        fold.add(sample)
    reading = fold.reading("r0", NOON + timedelta(seconds=40))

    assert reading is not None
    assert reading.shift == "the load began 20 s ago"


@pytest.mark.parametrize(
    ("arriving", "rate"),
    [
        pytest.param([5] * 200 + [0] * 20, 5 * 199 / 219, id="the load has ended, the queue has not"),
        pytest.param([3] * 20 + [0] * 40 + [5] * 60, 5.0, id="not beyond an idle time"),
        pytest.param([0] * 40 + [6] * 15, 3.0, id="at least the window"),
    ],
)
def test_the_lasting_rate_is_that_of_the_time_since_the_queue_began(arriving: list[int], rate: float) -> None:
    lasting = lasting_rate(scrapes(arriving, served=4), least_s=SPAN_S)

    assert lasting == pytest.approx(rate)


@pytest.mark.parametrize(
    ("arriving", "rate"),
    [
        pytest.param([0] * 60 + [6] * 12, 6.0, id="began 12 s ago"),
        pytest.param([6] * 12, 6.0, id="since the first scrape"),
        pytest.param([0] * 60 + [6] * 8, None, id="just now"),
        pytest.param([0] * 60 + [1] * 12, None, id="a few"),
        pytest.param([9] * 60 + [0] * 600, None, id="idle"),
    ],
)
def test_the_rate_of_a_load_that_began(arriving: list[int], rate: float | None) -> None:
    begun = begun_rate(scrapes(arriving, served=4))

    assert begun == (None if rate is None else pytest.approx(rate, rel=0.1))


def test_the_lasting_rate_does_not_go_beyond_a_restart() -> None:
    samples = scrapes([9] * 40 + [5] * 40, served=4)
    samples[40] = replace(samples[40], interval_s=0.0)

    assert lasting_rate(samples, least_s=SPAN_S) == pytest.approx(5.0)
    assert lasting_rate([replace(samples[0], missing=frozenset({"request_success"}))], least_s=SPAN_S) is None
