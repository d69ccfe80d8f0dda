"""Wait until the GPU memory of a container that has ended is free: the driver takes a while to let go of it.

vLLM measures what is free as it starts. Memory that comes back in the middle of that makes it give up.
"""

import asyncio
import os
from contextlib import suppress

from actuators.docker import capacity
from actuators.docker.spec import ContainerSpec

_WITHIN_S = 30.0
_EVERY_S = 1.0
_AT_REST_MIB = 64.0  # that others on the GPU may come and go with


async def freed(
    host: str, spec: ContainerSpec, every_s: float = _EVERY_S, within_s: float = _WITHIN_S
) -> None:
    """Returns when no more of it comes back, or `within_s` is over; at once where nobody can tell.

    `host`: where the Engine is, as in DOCKER_HOST.
    """
    if not spec.gpus.any:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            before = await _free(host, spec)
            while before:
                await asyncio.sleep(every_s)
                now = await _free(host, spec)
                if all(free - before.get(gpu, free) <= _AT_REST_MIB for gpu, free in now.items()):
                    return
                before = now


async def _free(host: str, spec: ContainerSpec) -> dict[str, float]:
    """MiB by GPU, of all that the host has: those of others are at rest too. Empty: nobody can tell."""
    seen = await capacity.look(host or os.environ.get("DOCKER_HOST", ""), [spec])
    return {gpu.uuid: gpu.free_mib for gpu in seen.gpus or () if gpu.free_mib is not None}
