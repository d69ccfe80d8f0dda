"""Waits until something is true, on a loop that jumps over waits."""

import asyncio
from math import inf

import pytest

from flettner.primitives.waiting import poll_until
from tests.support.fast_time import in_no_time


@pytest.mark.parametrize(
    ("answers", "within_s", "last", "asked_at_s"),
    [
        (["now"], inf, "now", [0]),
        (["now"], 0, "now", [0]),
        ([0, "", None, "later"], inf, "later", [0, 2, 4, 6]),
        ([0, 0, 0, 0, 0], 5, 0, [0, 2, 4, 6]),
        ([0, 0], 0, 0, [0]),
    ],
)
def test_it_asks_until_the_answer_is_true_or_the_time_is_over(
    answers: list[object], within_s: float, last: object, asked_at_s: list[float]
) -> None:
    async def story() -> None:
        asked: list[float] = []

        async def answer() -> object:
            asked.append(asyncio.get_running_loop().time())
            return answers[len(asked) - 1]

        assert await poll_until(answer, every_s=2, within_s=within_s) == last
        assert asked == asked_at_s

    in_no_time(story())


def test_an_error_of_the_question_ends_the_wait() -> None:
    async def refuse() -> bool:
        raise PermissionError

    async def story() -> None:
        with pytest.raises(PermissionError):
            await poll_until(refuse, every_s=1)

    in_no_time(story())
