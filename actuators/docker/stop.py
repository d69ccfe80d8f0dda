"""End a container: stop it so that it can be started again, or remove it for good.

The driver frees GPU memory some time after a server has ended. vLLM measures the free memory as it starts,
and gives up if memory is freed during the measurement. So the end waits until the memory is free.
"""

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from flettner.actuators.docker import capacity, snapshots
from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.clone import document_to_keep
from flettner.actuators.docker.discovery import COMPOSE, FoundContainer
from flettner.actuators.docker.snapshots import Snapshot
from flettner.actuators.docker.spec import NEVER, ContainerSpec, Json, is_restarting
from flettner.actuators.host.memory import GpuMemory, until_freed
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from flettner.primitives.waiting import poll_until

_ENDED_WITHIN_S = 30.0  # after SIGKILL: the kernel needs seconds to free the memory of a GPU
_POLL_S = 0.1
_GPU_FREE_WITHIN_S = 30.0
_GPU_POLL_S = 1.0


async def keep(client: DockerClient, site: Site, one: FoundContainer) -> Snapshot:
    """Write the snapshot of a container if there is none, or if its restart policy has changed."""
    kept = snapshots.read_snapshot(site, one.server)
    if kept is not None and kept.id == one.id and not kept.gone:
        if not kept.stopped and kept.policy != one.policy:  # changed by an operator
            kept = replace(kept, policy=one.policy)
            snapshots.write_snapshot(site, kept)
        return kept
    kept = Snapshot(
        server=one.server,
        id=one.id,
        ours=one.ours,
        epoch=site.epoch,
        spec=document_to_keep(one.spec, await client.image(one.spec.image)),
        policy=one.policy,
    )
    snapshots.write_snapshot(site, kept)
    return kept


async def stop(client: DockerClient, site: Site, one: FoundContainer, grace_s: float) -> None:
    """End the container; only `launch` starts it again."""
    if one.spec.auto_remove:
        raise ActError(
            f"{one.server} was started with --rm, so a stop would remove it and make a rollback impossible: "
            "start it without --rm"
        )
    await keep(client, site, one)
    snapshots.update(site, one.server, stopped=True, epoch=site.epoch)
    await end(client, one, grace_s)
    snapshots.update(site, one.server, asleep="")


async def retire(
    client: DockerClient, site: Site, name: str, found: Mapping[str, FoundContainer], grace_s: float
) -> None:
    """Remove the container; the one that was made like it inherits its restart policy.

    A container of docker compose is stopped only: compose fails if one of its containers is missing.
    """
    one = found.get(name)
    kept = await keep(client, site, one) if one else snapshots.read_snapshot(site, name)
    if kept is None:
        return
    await transfer_restart_policy(client, site, kept, found)
    if one is None:
        snapshots.update(site, name, gone=True, epoch=site.epoch)
        return
    composed = COMPOSE in one.spec.labels and not one.ours
    snapshots.update(site, name, stopped=True, epoch=site.epoch)
    await end(client, one, grace_s)
    if not composed:
        await client.remove(one.id)
        snapshots.update(site, name, stopped=False, gone=True)


async def transfer_restart_policy(
    client: DockerClient, site: Site, kept: Snapshot, found: Mapping[str, FoundContainer]
) -> None:
    """Give `kept.policy` to the running containers that were made like the one of the snapshot."""
    for successor in found.values():
        if successor.like == kept.server and successor.active:
            await apply_restart_policy(client, site, successor, kept.policy)


async def apply_restart_policy(
    client: DockerClient, site: Site, successor: FoundContainer, policy: Json
) -> None:
    """First in force, then written, so that a repetition has the same result."""
    if not is_restarting(policy) or successor.policy == policy or successor.spec.auto_remove:
        return
    await client.restart_policy(successor.id, policy)
    await keep(client, site, successor)
    snapshots.update(site, successor.server, policy=policy)


async def end(client: DockerClient, one: FoundContainer, grace_s: float) -> None:
    """Return when the container has ended, its memory is free, and Docker will not start it again.

    A paused container, or one without grace, gets SIGKILL at once: a loading server ignores SIGTERM.
    """
    await disable_restarts(client, one)
    if not one.active:
        return
    if one.spec.state.paused or grace_s <= 0:
        await client.kill(one.id)
    else:
        await client.stop(one.id, grace_s)

    async def ended() -> bool:
        now = await client.inspect(one.id)
        return now is None or not now.state.running

    try:
        async with asyncio.timeout(_ENDED_WITHIN_S):
            await poll_until(ended, _POLL_S)
    except TimeoutError as error:
        why = f"{one.server} still runs {_ENDED_WITHIN_S:g} s after SIGKILL: look at the driver"
        raise ActError(why) from error
    await wait_for_gpu_memory(client.host, one.spec)


async def sweep(
    client: DockerClient, site: Site, found: Mapping[str, FoundContainer], wanted: Collection[str]
) -> None:
    """Remove containers of ours that do not run, and are neither wanted nor kept for a rollback."""
    for name, one in found.items():
        kept = snapshots.read_snapshot(site, name)
        kept_stopped = kept is not None and kept.stopped and kept.id == one.id
        if one.ours and not one.active and name not in wanted and not kept_stopped:
            if kept is not None and kept.id == one.id:
                snapshots.update(site, name, gone=True)
            await client.remove(one.id)
    snapshots.prune(site)


async def disable_restarts(client: DockerClient, one: FoundContainer) -> None:
    if one.spec.restarts and not one.spec.auto_remove:
        await client.restart_policy(one.id, dict(NEVER))


async def wait_for_gpu_memory(
    host: str, spec: ContainerSpec, every_s: float = _GPU_POLL_S, within_s: float = _GPU_FREE_WITHIN_S
) -> None:
    """Return when no more memory is freed, after `within_s` at the latest; at once if it cannot be measured.

    `host`: the Engine, as in DOCKER_HOST. `spec`: the container that has ended.
    """

    async def measure() -> Sequence[GpuMemory]:
        measured = await capacity.measure_host(host or os.environ.get("DOCKER_HOST", ""), [spec])
        return measured.gpus or ()

    if spec.gpus.any:
        await until_freed(measure, every_s, within_s)
