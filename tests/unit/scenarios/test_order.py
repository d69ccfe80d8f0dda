"""Two targets in one daemon: the second one's change waits for the promotion of the first one's."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from flettner.agent.domain import events as e
from flettner.agent.domain.ports import Site
from flettner.agent.domain.state import Phase
from flettner.agent.runtime.loop import TargetLoop
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import in_virtual_time, loop_now
from tests.support.machine_stories import BLUE, rules
from tests.support.running_loop import start_loop
from tests.unit.scenarios.test_loop import Clients, reach


async def ask(loop: TargetLoop, after: str = "") -> str:
    """Ask for a change and approve it; return the id of its suggestion."""
    to = {"max_num_seqs": 8}
    await loop.submit(e.ChangeAsked(at=loop_now(), actor="ann", to=to, reason="newer", after=after))
    await reach(loop, Phase.PROPOSED)
    made = loop.state.suggestions.open[0]
    await loop.submit(e.Approved(at=loop_now(), actor="ann", suggestion=made.id, digest=made.digest))
    return made.id


@pytest.mark.parametrize("bad", [False, True])
@in_virtual_time
async def test_the_second_target_starts_after_the_first_or_not_at_all(tmp_path: Path, *, bad: bool) -> None:
    loops: dict[str, TargetLoop] = {}
    async with AsyncExitStack() as stack:
        for name in ("first", "second"):
            home, traffic = tmp_path / name, FakeTraffic()
            home.mkdir()
            site = Site(target=name, state_dir=home, epoch=1)
            daemon = start_loop(
                rules(policies=()),
                home=home,
                engine=FakeEngine(BLUE, takes_s=3),
                traffic=traffic,
                target=name,
                sensors=(Clients(traffic.bind(site), green_fails=bad and name == "first"),),
                find_state=lambda name: loops[name].state,
            )
            stack.push_async_callback(daemon.stop)
            loops[name] = daemon.loop
        first, second = loops.values()
        for loop in loops.values():
            await reach(loop, Phase.OBSERVING)

        waiting = await ask(second, after=await ask(first))
        await reach(first, Phase.CANARY)
        (waits,) = second.state.suggestions.open
        await reach(first, Phase.OBSERVING, Phase.COOLDOWN)
        await asyncio.sleep(3)

        assert (waits.id, waits.approved_by) == (waiting, "ann")
        assert first.state.rollout is not None
        assert first.state.rollout.outcome == ("rolled_back" if bad else "promoted")
        assert (second.state.rollout is None) is bad
        assert second.state.suggestions.open == ()
