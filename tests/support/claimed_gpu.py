"""A GPU that the servers of a test only claim to have: it is free while they sleep or do not run."""

from dataclasses import dataclass, replace

import aiohttp

from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import Container
from flettner.actuators.host.memory import GpuMemory, Host
from flettner.actuators.process.sleep import RunningServer

GIB = 1024**3
SLEEPS = ("--enable-sleep-mode", "--max-num-seqs", "2")
DEV = {"VLLM_SERVER_DEV_MODE": "1"}
FULL = GpuMemory(index=0, uuid="GPU-1", free_mib=8 * 1024.0, total_mib=80 * 1024.0)


@dataclass
class ClaimedGpu:
    """80 GiB. `left_mib`: what a sleeping server still holds; `memory`: bytes that the host has free."""

    left_mib: float = 1024.0
    memory: int = 256 * GIB

    async def measure(self, client: DockerClient, container: Container) -> Host:
        del client
        return await self._measure_at(container.address)

    async def measure_process(self, server: RunningServer) -> Host:
        return await self._measure_at(server.address)

    async def _measure_at(self, address: str) -> Host:
        free = 80 * 1024.0 - self.left_mib if await sleeps(address) else FULL.free_mib
        return Host(memory=self.memory, memory_total=512 * GIB, gpus=(replace(FULL, free_mib=free),))


async def sleeps(address: str) -> bool:
    url = f"http://{address}/is_sleeping"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return (await answer.json())["is_sleeping"] is True
