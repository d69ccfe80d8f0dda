"""A second stays where it is, whatever the work of the one before took."""

import asyncio
from collections.abc import Sequence

import pytest

from flettner.agent.runtime.process_clock import each_second
from tests.support.fast_time import in_no_time


@pytest.mark.parametrize(
    ("work_s", "seconds"),
    [
        pytest.param((0, 0, 0), [1, 2, 3, 4], id="no work"),
        pytest.param((0.25, 0.75, 0.5), [1, 2, 3, 4], id="work within a second"),
        pytest.param((1, 0, 0), [1, 2, 3, 4], id="work until the next second"),
        pytest.param((2.5, 0, 0.5), [1, 4, 5, 6], id="work over two seconds"),
    ],
)
def test_seconds_are_at_whole_seconds_after_the_start(
    work_s: Sequence[float], seconds: Sequence[float]
) -> None:
    async def starts() -> list[float]:
        clock = asyncio.get_running_loop().time
        began, starts_s, left = clock(), list[float](), list(work_s)
        async for late_s in each_second():
            assert late_s == 0
            starts_s.append(clock() - began)
            if not left:
                return starts_s
            await asyncio.sleep(left.pop(0))
        raise AssertionError

    assert in_no_time(starts()) == seconds


def test_an_offset_brings_the_first_second_forward() -> None:
    async def starts() -> list[float]:
        clock = asyncio.get_running_loop().time
        began = clock()
        seconds = each_second(0.25)
        return [clock() - began for _ in range(3) if await anext(seconds) == 0]

    assert in_no_time(starts()) == [0.75, 1.75, 2.75]
