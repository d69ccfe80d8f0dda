"""A blue that freezes in a canary is left: green carries its traffic until blue is back."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.support.config_builder import SiteConfig
from tests.support.rig import Rig, until

LONG = SiteConfig(steps=((50, 100_000, 50.0),), at_most_s=3000.0, lost_after=10)
HALVES = {"chat-r1": 50, "chat-r2": 50}
GREEN = {"chat-r1": 0, "chat-r2": 100}


async def in_canary(site: Start) -> Rig:
    rig = await site(LONG)
    await rig.serving()
    await rig.change(max_num_seqs=9)
    await rig.in_phase("canary")
    await until(rig.weights, HALVES.__eq__, "half of the traffic on each")
    return rig


async def served(rig: Rig, requests: int) -> None:
    """Send requests one after the other; each is answered."""
    async with rig.clients() as traffic:
        await until(lambda: _ok(traffic.tally.outcomes), lambda ok: ok >= requests, "answers")
    assert set(traffic.tally.outcomes) == {"ok"}, traffic.tally.counts()


async def _ok(outcomes: Any) -> int:  # noqa: ANN401 - a counter
    return int(outcomes["ok"])


def names(action: str) -> Callable[[Rig], bool]:
    return lambda rig: any(entry["action"] == action for entry in rig.audit())


@pytest.mark.smoke
async def test_requests_succeed_while_blue_is_frozen_in_a_canary(site: Start) -> None:
    rig = await in_canary(site)
    async with rig.clients(timeout_s=5.0) as traffic:
        await until(lambda: _ok(traffic.tally.outcomes), lambda ok: ok > 20, "answers")
        os.kill(rig.pid("chat-r1"), signal.SIGSTOP)
        await until(rig.weights, GREEN.__eq__, "the failover")

    await served(rig, 50)

    await until(rig.rollout, lambda latest: "answers neither" in latest.get("failover", ""), "the reason")
    rollout, target = await rig.rollout(), await rig.target()
    assert (rollout["outcome"], rollout["phase"]) == ("running", "canary")
    assert "chat-r1 answers neither its scrapes nor a request; chat-r2 has the traffic" in rollout["failover"]
    assert target["failover"] == rollout["failover"]
    assert names("traffic.failed_over")(rig)
    assert not names("rollout.promoting")(rig)

    os.kill(rig.pid("chat-r1"), signal.SIGCONT)
    await until(rig.weights, HALVES.__eq__, "the split of the step")
    await until(rig.rollout, lambda latest: latest and not latest["failover"], "the end of the failover")
    assert names("traffic.failover_ended")(rig)


async def test_the_failover_outlives_the_daemon(site: Start) -> None:
    rig = await in_canary(site)
    os.kill(rig.pid("chat-r1"), signal.SIGSTOP)
    await until(rig.weights, GREEN.__eq__, "the failover")

    await rig.kill()
    await served(rig, 100)  # for longer than the lease of 5 s
    await rig.start()
    await until(rig.target, lambda target: target.get("failover"), "the restarted daemon")
    await served(rig, 20)
