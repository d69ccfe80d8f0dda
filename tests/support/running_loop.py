"""The loop of one target with a journal of its own, in the event loop's time."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flettner.agent.audit.journal import Journal
from flettner.agent.audit.segments import RetentionLimits
from flettner.agent.domain.model import Mode
from flettner.agent.domain.ports import Site
from flettner.agent.domain.state import State
from flettner.agent.machine.transitions import Rules
from flettner.agent.runtime.loop import TargetLoop
from flettner.agent.runtime.wiring import build_loop
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import loop_now


@dataclass(slots=True)
class RunningLoop:
    loop: TargetLoop
    journal: Journal
    task: asyncio.Task[None]

    def check(self) -> None:
        """Raise what ended the loop."""
        if self.task.done():
            self.task.result()

    async def stop(self) -> None:
        """Stop without cleanup, as a kill does; only the journal remains."""
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        self.journal.close()


def start_loop(
    rules: Rules,
    *,
    home: Path,
    engine: FakeEngine,
    traffic: FakeTraffic,
    target: str = "chat",
    recorded: State | None = None,
    mode: Mode = "approve",
    epoch: int = 1,
    sync: Callable[[int], None] = os.fdatasync,
    limits: RetentionLimits | None = None,
    **parts: Any,  # noqa: ANN401 - of build_loop
) -> RunningLoop:
    """Start the daemon of a target, which goes on from its journal in `home`.

    `recorded`: the state that it goes on from where the journal has none.
    """
    journal = Journal.open(home / "audit.jsonl", now=loop_now, sync=sync, limits=limits)
    site = Site(target=target, state_dir=home, epoch=epoch)
    loop = build_loop(
        rules,
        journal.states().get(target, recorded or State(target=target)),
        mode=mode,
        journal=journal,
        engine=engine.bind(site),
        traffic=traffic.bind(site),
        state_dir=home,
        now=loop_now,
        **parts,
    )
    return RunningLoop(loop, journal, asyncio.create_task(loop.run(epoch, lambda: None)))
