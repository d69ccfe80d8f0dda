"""The lease of a published route begins in each pod when the pod sees a new write of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from flettner.actuators.envoy.pod.target import PodTarget
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from tests.support.fake_traffic import FakeTraffic
from tests.support.sse_backend import until
from tests.unit.envoy_pod.test_published_route import CANARY, PUBLISHED


class Pod:
    """A target of a pod whose Envoy is a fake."""

    def __init__(self) -> None:
        self.fake = FakeTraffic()
        self.proxy = self.fake.bind(Site(target="chat", state_dir=Path("/"), epoch=1))
        self.target = PodTarget(proxy=lambda _: self.proxy)

    @property
    def routes(self) -> list[Route]:
        return [route for _, route in self.fake.calls]

    async def applied(self, write: str) -> Route:
        async def is_in_force() -> bool:
            return self.target.in_force is not None and self.target.in_force.write == write

        await until(is_in_force)
        return self.routes[-1]


@asynccontextmanager
async def running() -> AsyncIterator[Pod]:
    pod = Pod()
    task = asyncio.create_task(pod.target.run())
    try:
        yield pod
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_the_first_route_that_a_pod_sees_may_be_old_and_has_no_lease() -> None:
    async with running() as pod:
        pod.target.take(PUBLISHED)
        first = await pod.applied("1")
        pod.target.take(PUBLISHED)  # listed again
        pod.target.take(replace(PUBLISHED, write="2"))
        renewed = await pod.applied("2")

    assert first.weights == {"chat-r1": 100, "chat-r2": 0}
    assert first.leased is None
    assert len(pod.routes) == 2
    assert (renewed.weights, renewed.leased) == (CANARY.weights, "chat-r2")
    assert 14.0 < renewed.lease_s <= 15.0


async def test_an_ended_lease_gives_the_share_back_until_it_is_renewed() -> None:
    async with running() as pod:
        pod.target.take(PUBLISHED)
        await pod.applied("1")
        pod.target.take(replace(PUBLISHED, write="2", lease_ended=True))
        ended = await pod.applied("2")
        pod.target.take(replace(PUBLISHED, write="3"))
        renewed = await pod.applied("3")

    assert ended.leased is None
    assert renewed.leased == "chat-r2"


async def test_the_time_until_envoy_takes_a_route_is_of_its_lease() -> None:
    async with running() as pod:
        pod.target.take(PUBLISHED)
        await pod.applied("1")
        pod.proxy.next_error = ActError("Envoy is not there yet")
        pod.target.take(replace(PUBLISHED, write="2"))
        late = await pod.applied("2")

    assert late.lease_s <= 14.0  # it is tried again after a second


async def test_a_refused_route_is_told_and_the_next_one_takes_its_place() -> None:
    async with running() as pod:
        pod.proxy.next_error = ActError("an address that is none")
        pod.target.take(PUBLISHED)

        async def is_refused() -> bool:
            return pod.target.refused is not None

        await until(is_refused)
        outcome = (pod.target.why, pod.target.in_force)
        pod.target.take(replace(PUBLISHED, write="2"))
        await pod.applied("2")

    assert outcome == ("an address that is none", None)
    assert pod.target.why == ""


async def test_a_removed_route_stays_in_force_but_its_requests_are_not_counted_for_the_daemon() -> None:
    async with running() as pod:
        pod.target.take(PUBLISHED)
        await pod.applied("1")
        before = await pod.target.in_flight("chat-r1")
        pod.target.release()

        assert before == 0
        assert await pod.target.in_flight("chat-r1") is None
        assert await pod.target.is_listening()
