"""Attempts that are repeated by tenacity: in virtual time, until they succeed or are cancelled."""

import asyncio

import pytest
from structlog.testing import capture_logs
from tenacity import AsyncRetrying, retry_if_exception_type, retry_if_result, wait_fixed

from flettner.agent.domain.errors import ActError
from flettner.agent.retrying import Backoff, ReasonLog, retry, stop_before
from tests.support.fast_time import in_no_time


class Attempts:
    """Fails with each of the reasons, then returns the loop's time."""

    def __init__(self, *reasons: str) -> None:
        self.reasons = list(reasons)
        self.began_s: list[float] = []

    async def act(self) -> float:
        self.began_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(1.0)
        if self.reasons:
            raise ActError(self.reasons.pop(0))
        return asyncio.get_running_loop().time()


def test_it_is_tried_again_after_the_pause_and_each_reason_is_logged_once() -> None:
    attempts = Attempts("away", "away", "busy")
    policy = AsyncRetrying(
        retry=retry_if_exception_type(ActError),
        wait=wait_fixed(5.0),
        before_sleep=ReasonLog("daemon.waiting", {"target": "chat"}),
    )

    with capture_logs() as logs:
        ended_s = in_no_time(retry(policy, attempts.act))

    assert (attempts.began_s, ended_s) == ([0.0, 6.0, 12.0, 18.0], 19.0)
    assert [(line["event"], line["target"], line["why"]) for line in logs] == [
        ("daemon.waiting", "chat", "away"),
        ("daemon.waiting", "chat", "busy"),
    ]


def test_it_stops_before_the_deadline_by_the_clock_of_the_event_loop() -> None:
    attempts = Attempts(*["away"] * 9)

    async def scenario() -> float:
        policy = AsyncRetrying(
            retry=retry_if_exception_type(ActError),
            wait=wait_fixed(5.0),
            stop=stop_before(20.0),
            reraise=True,
        )
        with pytest.raises(ActError, match="away"):
            await retry(policy, attempts.act)
        return asyncio.get_running_loop().time()

    assert in_no_time(scenario()) == 19.0


@pytest.mark.parametrize("after_s", [pytest.param(0.5, id="attempt"), pytest.param(3.0, id="pause")])
def test_a_cancellation_ends_an_attempt_and_a_pause_at_once(after_s: float) -> None:
    attempts = Attempts(*["away"] * 9)

    async def scenario() -> float:
        policy = AsyncRetrying(
            retry=retry_if_exception_type(ActError) | retry_if_result(lambda _: True), wait=wait_fixed(5.0)
        )
        trying = asyncio.create_task(retry(policy, attempts.act))
        await asyncio.sleep(after_s)
        trying.cancel()
        await asyncio.wait({trying})
        assert trying.cancelled()
        return asyncio.get_running_loop().time()

    assert in_no_time(scenario()) == after_s
    assert len(attempts.began_s) == 1


def test_another_error_is_not_tried_again() -> None:
    async def broken() -> None:
        await asyncio.sleep(0)
        raise KeyError("a bug")

    policy = AsyncRetrying(retry=retry_if_exception_type(ActError), wait=wait_fixed(5.0))

    with pytest.raises(KeyError):
        in_no_time(retry(policy, broken))


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = Backoff(first_s=1.0, longest_s=5.0)
    attempts = Attempts(*["away"] * 6)

    async def act() -> float:
        if len(attempts.began_s) == 4:
            backoff.reset()
        return await attempts.act()

    in_no_time(retry(AsyncRetrying(retry=retry_if_exception_type(ActError), wait=backoff), act))

    ends = [began_s + 1.0 for began_s in attempts.began_s]
    pauses = [began_s - end_s for began_s, end_s in zip(attempts.began_s[1:], ends, strict=False)]
    assert pauses == [1.0, 2.0, 4.0, 5.0, 1.0, 2.0]
