"""The event stream of a Docker Engine is opened again until its reader ends."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, Self, cast

import docker
from docker.errors import DockerException

from flettner.clients.docker.events import RESYNC, follow_events

START = b'{"Type": "container", "Action": "start", "Actor": {"ID": "c1"}, "timeNano": 7}\n'


class Engine:
    """Each connection gives one event and ends; the first one is refused."""

    base_url, api_version, timeout = "http://docker", "1.47", 1.0

    def __init__(self) -> None:
        self.queries: list[dict[str, Any]] = []
        self.ends = threading.Event()  # the second connection

    def connect(self) -> docker.APIClient:
        self.queries.append({})
        if len(self.queries) == 1:
            raise DockerException("no Engine")
        return cast("docker.APIClient", self)

    def get(self, _: str, *, params: dict[str, Any], **__: object) -> Self:
        self.queries[-1] = params
        return self

    def iter_content(self, _: int) -> Iterator[bytes]:
        yield START
        if len(self.queries) > 2:
            self.ends.wait(10)

    def raise_for_status(self) -> None:
        """It answers 200."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.set()


async def test_it_goes_on_after_the_last_event_until_it_is_closed() -> None:
    engine = Engine()
    events = follow_events(engine.connect, {})

    seen = [(await anext(events)).action for _ in range(4)]
    engine.ends.set()
    await events.aclose()

    assert seen == [RESYNC.action, "start", RESYNC.action, "start"]
    assert [params.get("since") for params in engine.queries] == [None, None, "0.000000008"]


async def test_a_reader_that_waits_for_an_absent_engine_can_be_cancelled() -> None:
    def connect() -> docker.APIClient:
        raise DockerException("no Engine")

    waiting = asyncio.ensure_future(anext(follow_events(connect, {})))
    await asyncio.sleep(0.2)
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=10)

    assert waiting.cancelled()
