"""Every log line of a running rollout names its target and rollout, also in its tasks."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from flettner.agent.domain.events import Paused
from flettner.agent.domain.model import Server
from flettner.agent.domain.state import Phase
from tests.support.daemon_log import daemon_log
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import in_virtual_time, loop_now
from tests.support.machine_stories import BLUE
from tests.unit.scenarios.test_loop import approve, reach, running


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    with daemon_log() as stream:
        yield stream


class Talking(FakeEngine):
    """A sensor that logs through the standard library."""

    async def launch(self, server: Server, deadline_s: float) -> Server:
        logging.getLogger("library").warning("starting a server")
        return await super().launch(server, deadline_s)


@in_virtual_time
async def test_only_log_lines_of_a_rollout_name_it(tmp_path: Path, log: io.StringIO) -> None:
    async with running(tmp_path, Talking(BLUE, takes_s=3), FakeTraffic()) as loop:
        await approve(loop)
        await reach(loop, Phase.OBSERVING)
        await loop.submit(Paused(at=loop_now(), actor="alice"))

    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    (library,) = (line for line in lines if line["logger"] == "library")
    before, after = lines[0], lines[-1]
    assert {line["target"] for line in lines} == {"chat"}
    assert library["rollout"]
    assert {line["rollout"] for line in lines if line.get("rollout")} == {library["rollout"]}
    assert not before.get("rollout")
    assert (after["event"], bool(after.get("rollout"))) == ("target.paused", False)
