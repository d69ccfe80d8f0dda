"""Two kinds of load are found where they take turns; none where one kind drifts, jumps or is new."""

from collections.abc import Callable
from math import pi, sin
from random import Random

import pytest

from flettner.performance_model.load_mixes import ROW_S, LoadRow, find_mixes

HOUR_S, DAY_S = 3600, 86_400
Lengths = Callable[[int, Random], tuple[float, float]]  # of the time in seconds


def week(lengths: Lengths, days: float = 7.0) -> list[LoadRow]:
    """Rows with 10 % of noise."""
    random, rows = Random(1), []  # noqa: S311 - reproducible, not secret
    for at in range(ROW_S, round(days * DAY_S) + 1, ROW_S):
        prompt, answer = (length * random.lognormvariate(0, 0.1) for length in lengths(at - ROW_S, random))
        rows.append(LoadRow(at=at, requests=900, prompt_tokens=prompt, answer_tokens=answer))
    return rows


def is_night(at: int) -> bool:
    return not 6 <= at % DAY_S // HOUR_S < 22


def day_and_night(at: int, _: Random) -> tuple[float, float]:
    return (6000.0, 100.0) if is_night(at) else (400.0, 150.0)


def test_chats_by_day_and_long_prompts_by_night_are_two_kinds() -> None:
    mixes = find_mixes(week(day_and_night))

    assert mixes is not None
    assert mixes.metric == "prompt_tokens"
    assert 400 < mixes.low < mixes.high < 6000
    assert mixes.above_hours == (0, 1, 2, 3, 4, 5, 22, 23)
    assert mixes.above_share == pytest.approx(1 / 3)
    assert mixes.below_tokens == pytest.approx(400, rel=0.1)
    assert mixes.above_tokens == pytest.approx(6000, rel=0.1)


def test_the_other_kind_begins_above_the_band_and_ends_below_it() -> None:
    mixes = find_mixes(week(day_and_night))
    assert mixes is not None
    between = (mixes.low + mixes.high) / 2

    assert not mixes.is_above(between, before=False)
    assert mixes.is_above(between, before=True)
    assert mixes.is_above(mixes.high + 1, before=False)
    assert not mixes.is_above(mixes.low - 1, before=True)


def test_answers_tell_kinds_apart_too() -> None:
    mixes = find_mixes(week(lambda at, _: (500.0, 900.0 if is_night(at) else 100.0)))

    assert mixes is not None
    assert mixes.metric == "answer_tokens"


ONE_KIND: dict[str, Lengths] = {
    "the same all the time": lambda _, __: (500.0, 100.0),
    "drifts over the day": lambda at, _: (500.0 * 2 ** sin(2 * pi * at / DAY_S), 100.0),
    "jumps about at each quarter": lambda _, random: (random.choice((400.0, 6000.0)), 100.0),
    "changed once, for good": lambda at, _: (400.0 if at < 4 * DAY_S else 6000.0, 100.0),
    "a long night once": lambda at, _: (6000.0 if 3 * DAY_S <= at < 3.5 * DAY_S else 400.0, 100.0),
    "any length": lambda _, random: (random.lognormvariate(6, 1), 100.0),
    "half an hour a week": lambda at, _: (6000.0 if at % (3 * DAY_S) < HOUR_S else 400.0, 100.0),
}


@pytest.mark.parametrize("lengths", ONE_KIND.values(), ids=ONE_KIND)
def test_one_kind_is_not_taken_for_two(lengths: Lengths) -> None:
    assert find_mixes(week(lengths)) is None


def test_less_than_two_days_show_nothing() -> None:
    assert find_mixes([]) is None
    assert find_mixes(week(day_and_night, days=1.9)) is None
