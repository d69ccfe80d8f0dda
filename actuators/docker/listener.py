"""Whose process listens at a container's address."""

import asyncio

from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import Container
from flettner.actuators.host import cgroup, procfs
from flettner.actuators.host.listeners import describe_foreign
from flettner.primitives.address import Address


async def find_foreign(client: DockerClient, container: Container) -> str:
    """Describe a process in the container's place; empty if there is none, or none can be told.

    Only in the network of the host a container shares its ports with others: Docker itself binds a published
    port, and the network of a container is its own. Processes are told apart where this host shows those of
    the container, which a daemon with a process namespace of its own does not see.
    """
    if container.network_mode != "host" or not client.is_local or not container.address:
        return ""
    return await asyncio.to_thread(_find_foreign, container)


def _find_foreign(container: Container) -> str:
    first = procfs.process(container.state.pid)
    if first is None or cgroup.find_container_of(first.pid) != container.id:
        return ""
    return describe_foreign(Address.parse(container.address), lambda: procfs.with_descendants([first]))
