"""What is kept of a week's load: a row for each quarter of an hour, and one quarter of each kind."""

import pytest

from flettner.agent.prediction.load_history import (
    MOST_REQUESTS,
    MOST_ROWS,
    MOST_SAMPLES,
    LoadHistory,
    decode,
    encode,
)
from flettner.performance_model.load_mixes import ROW_S, find_mixes
from flettner.performance_model.trace import Trace, TraceRequest

CHAT, BATCH = (400, 150), (6000, 100)


def load(prompt: int, answer: int, count: int = 60) -> Trace:
    return tuple(
        TraceRequest(arrival_s=float(second), prompt_tokens=prompt, output_tokens=answer)
        for second in range(count)
    )


def quarters(count: int, *, night: tuple[int, int] = BATCH) -> LoadHistory:
    history = LoadHistory()
    for quarter in range(1, count + 1):
        lengths = night if quarter % 96 > 64 else CHAT
        history = history.add(quarter * ROW_S, load(*lengths))
    return history


def test_one_quarter_of_each_kind_is_kept_the_latest() -> None:
    history = quarters(200)

    assert [(sample.row.prompt_tokens, sample.row.at // ROW_S) for sample in history.samples] == [
        (6000, 191),
        (400, 200),
    ]


def test_the_kinds_that_are_found_have_their_quarter() -> None:
    history = quarters(300)
    mixes = find_mixes(history.rows)
    assert mixes is not None

    above, below = (history.sample_of(mixes, above=above) for above in (True, False))

    assert above is not None
    assert below is not None
    assert above.trace()[0].prompt_tokens == 6000
    assert below.trace()[0].prompt_tokens == 400
    assert LoadHistory().sample_of(mixes, above=True) is None


def test_a_quarter_with_few_requests_or_before_its_time_is_left_out() -> None:
    history = quarters(2)

    assert history.add(3 * ROW_S, load(*CHAT, count=49)) == history
    assert history.add(3 * ROW_S - 1, load(*CHAT)) == history


def test_rows_of_a_clock_that_was_ahead_are_dropped() -> None:
    history = quarters(3).add(100 * ROW_S, load(*CHAT))

    assert [row.at // ROW_S for row in history.add(4 * ROW_S, load(*CHAT)).rows] == [1, 2, 3, 4]


def test_requests_without_answers_are_a_kind_too() -> None:
    history = quarters(2).add(3 * ROW_S, load(400, 0))

    assert len(history.samples) == 2


def test_its_size_is_bounded() -> None:
    history = quarters(MOST_ROWS + 50)
    for number in range(2 * MOST_SAMPLES):
        at = history.rows[-1].at + ROW_S
        history = history.add(at, load(10 * 2**number, 100, count=2 * MOST_REQUESTS))

    assert len(history.rows) == MOST_ROWS
    assert len(history.samples) == MOST_SAMPLES
    assert len(history.samples[-1].requests) == MOST_REQUESTS
    assert history.samples[-1].requests[0][0] == 0
    assert len(encode(history)) < 500_000


def test_it_is_read_back() -> None:
    history = quarters(100)

    assert decode(encode(history)) == history
    with pytest.raises(ValueError, match="JSON"):
        decode(b"{")
