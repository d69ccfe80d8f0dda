"""Fixtures of the process engine tests: the stub, its ports and its leftover processes."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from flettner.actuators.host import ownership_env
from flettner.actuators.process.engine import ProcessEngine
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from tests.support.ports import port_block

STUB = (sys.executable, str(Path(__file__).with_name("stub_vllm.py")))
SERVER = Server(name="chat-r1", setting={})

Bound = Callable[..., ProcessEngine]


def free_ports() -> tuple[int, int]:
    block = port_block()
    return block[0], block[-1]


def site(state_dir: Path, epoch: int = 1) -> Site:
    return Site(target="chat", state_dir=state_dir, epoch=epoch)


def pids(state_dir: Path, name: str = SERVER.name) -> set[int]:
    return {process.pid for process in ownership_env.members(site(state_dir), name)}


async def until(holds: Callable[[], object]) -> None:
    while True:
        if holds():
            return
        await asyncio.sleep(0.05)
