"""End a container: kept stopped, so that it can be started again as it was, or removed for good."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace

from actuators.docker import snapshots
from actuators.docker.client import DockerClient
from actuators.docker.clone import document_to_keep
from actuators.docker.discovery import COMPOSE, FoundContainer
from actuators.docker.gpu_release import freed
from actuators.docker.snapshots import Snapshots
from actuators.docker.spec import NEVER, Json, is_restarting
from agent.domain.errors import ActError
from agent.domain.ports import Site

_ENDED_WITHIN_S = 30.0  # after SIGKILL: freeing a GPU's memory takes the kernel seconds
_POLL_S = 0.1


async def keep(client: DockerClient, site: Site, one: FoundContainer) -> Snapshots:
    """What is kept of it, written if it was not, or is not so any more."""
    kept = snapshots.read(site, one.server)
    if kept is not None and kept.id == one.id and not kept.gone:
        if not kept.stopped and kept.policy != one.policy:  # somebody has changed it
            kept = replace(kept, policy=one.policy)
            snapshots.write(site, kept)
        return kept
    kept = Snapshots(
        server=one.server,
        id=one.id,
        ours=one.ours,
        epoch=site.epoch,
        spec=document_to_keep(one.spec, await client.image(one.spec.image)),
        policy=one.policy,
    )
    snapshots.write(site, kept)
    return kept


async def stop(client: DockerClient, site: Site, one: FoundContainer, grace_s: float) -> None:
    """Ended, and started again by nobody but us."""
    if one.spec.auto_remove:
        raise ActError(
            f"{one.server} was started with --rm: stopped it would be gone, and with it the way back; "
            "start it without --rm"
        )
    await keep(client, site, one)
    snapshots.change(site, one.server, stopped=True, epoch=site.epoch)
    await end(client, one, grace_s)


async def retire(
    client: DockerClient, site: Site, name: str, found: Mapping[str, FoundContainer], grace_s: float
) -> None:
    """Gone for good; what was made like it inherits its restart policy.

    What docker compose has made is stopped only: compose would take offence at a container that is missing.
    """
    one = found.get(name)
    kept = await keep(client, site, one) if one else snapshots.read(site, name)
    if kept is None:
        return
    await bequeath(client, site, kept, found)
    if one is None:
        snapshots.change(site, name, gone=True, epoch=site.epoch)
        return
    composed = COMPOSE in one.spec.labels and not one.ours
    snapshots.change(site, name, stopped=True, epoch=site.epoch)
    await end(client, one, grace_s)
    if not composed:
        await client.remove(one.id)
        snapshots.change(site, name, stopped=False, gone=True)


async def bequeath(
    client: DockerClient, site: Site, kept: Snapshots, found: Mapping[str, FoundContainer]
) -> None:
    """What runs and was made like it is to be started again as it was."""
    for heir in found.values():
        if heir.like == kept.server and heir.active:
            await hand_on(client, site, heir, kept.policy)


async def hand_on(client: DockerClient, site: Site, heir: FoundContainer, policy: Json) -> None:
    """First in force, then written: repeated, it comes to the same."""
    if not is_restarting(policy) or heir.policy == policy or heir.spec.auto_remove:
        return
    await client.restart_policy(heir.id, policy)
    await keep(client, site, heir)
    snapshots.change(site, heir.server, policy=policy)


async def end(client: DockerClient, one: FoundContainer, grace_s: float) -> None:
    """It has ended, its memory is free, and Docker will not start it again.

    SIGKILL at once when it is paused, or without grace: one that still loads does not hear a SIGTERM.
    """
    await _never_again(client, one)
    if not one.active:
        return
    if one.spec.state.paused or grace_s <= 0:
        await client.kill(one.id)
    else:
        await client.stop(one.id, grace_s)
    try:
        async with asyncio.timeout(_ENDED_WITHIN_S):
            await _ended(client, one.id)
    except TimeoutError as error:
        why = f"{one.server} still runs {_ENDED_WITHIN_S:g} s after SIGKILL: look at the driver"
        raise ActError(why) from error
    await freed(client.host, one.spec)


async def sweep(
    client: DockerClient, site: Site, found: Mapping[str, FoundContainer], wanted: Collection[str]
) -> None:
    """Remove what is left of containers of ours: made or ended, and neither wanted nor kept for a way back.

    Somebody else's are theirs.
    """
    for name, one in found.items():
        kept = snapshots.read(site, name)
        kept_stopped = kept is not None and kept.stopped and kept.id == one.id
        if one.ours and not one.active and name not in wanted and not kept_stopped:
            if kept is not None and kept.id == one.id:
                snapshots.change(site, name, gone=True)
            await client.remove(one.id)
    snapshots.forget_old(site)


async def _ended(client: DockerClient, container: str) -> None:
    while True:
        now = await client.inspect(container)
        if now is None or not now.state.running:
            return
        await asyncio.sleep(_POLL_S)


async def _never_again(client: DockerClient, one: FoundContainer) -> None:
    if one.spec.restarts and not one.spec.auto_remove:
        await client.restart_policy(one.id, dict(NEVER))
