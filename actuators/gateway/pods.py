"""Which pods the Services of a split select."""

from collections.abc import Iterable

from flettner.actuators.gateway.backends import Backends
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient


async def select_same_pods(client: KubernetesClient, home: Backends, services: Iterable[str]) -> bool:
    """Whether the backends of people stand for these Services: both select the same pods, and some."""
    people = await find_pods(client, [backend["name"] for backend in home])
    return bool(people) and people == await find_pods(client, services)


async def find_other_pods(client: KubernetesClient, home: Backends, services: Iterable[str]) -> list[str]:
    """The pods that people's backends select and none of these Services does, by name."""
    people, ours = (
        await find_pods(client, [backend["name"] for backend in home]),
        await find_pods(client, services),
    )
    return sorted(people - ours)


async def find_pods(client: KubernetesClient, services: Iterable[str]) -> set[str]:
    """The names of the pods that these Services select; of a Service without a selector: none."""
    pods: set[str] = set()
    for name in services:
        service = await client.get(kubernetes.SERVICE, name)
        selector = ((service or {}).get("spec") or {}).get("selector")
        if selector:
            pods |= {pod["metadata"]["name"] for pod in await client.find(kubernetes.POD, selector)}
    return pods
