"""Give the servers of a target back to the people who own their workloads, and leave nothing of flettner's.

No request is lost: the workloads serve before a Deployment of flettner's ends, whose own requests end first.
Each step is idempotent, so that an interrupted detachment is repeated. Each returns what it did, one sentence
each, and raises ActError; what is done then stays done.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flettner.actuators.kubernetes.discovery import ServerEntry, find_servers, read_workload
from flettner.actuators.kubernetes.handover import Handover
from flettner.actuators.kubernetes.labels import PREFIX, REPLICAS, SERVES_AS, site_labels
from flettner.actuators.kubernetes.start import Starter, remove_server
from flettner.actuators.kubernetes.workload import Workload, WorkloadName
from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.documents import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Detachment:
    starter: Starter
    start_s: float  # deadline of a start

    async def give_back(self) -> list[str]:
        """Let people's workloads serve alone; the names of flettner's Services resolve to their pods."""
        said: list[str] = []
        homes = [await self._serve(name, said) for name in self.starter.adopted]
        servers = await find_servers(self.starter.client, self.starter.site, self.starter.adopted)
        for green in (server for server in servers.values() if server.workload.ours):
            await self._end(green, _home_of(green, homes))
            said.append(f"the Deployment {green.workload.name} is removed")
        return said

    async def clear(self) -> list[str]:
        """Remove the annotations and the Services, which no client may use any more."""
        said: list[str] = []
        for name in self.starter.adopted:
            await self._clean(name)
        for service in await self.starter.client.find(kubernetes.SERVICE, site_labels(self.starter.site)):
            await self.starter.client.delete(kubernetes.SERVICE, service["metadata"]["name"])
            said.append(f"the Service {service['metadata']['name']} is removed")
        return said

    async def _end(self, green: ServerEntry, home: Workload) -> None:
        """Remove a Deployment of flettner's; if it serves, its name resolves to the pods of `home` before."""
        if not (green.active and green.service):
            await remove_server(self.starter.client, self.starter.site, green)
            return
        handover = Handover(
            starter=self.starter,
            old=green,
            new=green,
            start_s=self.start_s,
            warm_up=_no_warm_up,
        )
        await handover.switch(home)

    async def _serve(self, name: WorkloadName, said: list[str]) -> Workload:
        """Return the operator's workload, available; scale it up if flettner had scaled it to 0."""
        client = self.starter.client

        async def to_usual(document: Json) -> Json | None:
            remembered = (document["metadata"].get("annotations") or {}).get(REPLICAS)
            if remembered is None or document["spec"].get("replicas", 1) >= int(remembered):
                return None
            version = document["metadata"]["resourceVersion"]
            said.append(f"{name} is scaled to {remembered} again")
            return {"metadata": {"resourceVersion": version}, "spec": {"replicas": int(remembered)}}

        workload = await read_workload(client, await client.update(name.resource, name.name, to_usual))
        if workload.replicas:
            await self.starter.wait_until_available(workload, self.start_s)
        return workload

    async def _clean(self, name: WorkloadName) -> None:
        """Remove flettner's annotations from the operator's workload; its pods stay as they are."""

        async def without_ours(document: Json) -> Json | None:
            notes = document["metadata"].get("annotations") or {}
            ours = {key: None for key in notes if key.startswith(PREFIX)}
            version = document["metadata"]["resourceVersion"]
            return {"metadata": {"resourceVersion": version, "annotations": ours}} if ours else None

        await self.starter.client.update(name.resource, name.name, without_ours)


async def _no_warm_up(_: str) -> None:
    """The pods of the operator's workload have served before."""


def _home_of(green: ServerEntry, homes: Sequence[Workload]) -> Workload:
    """Return the operator's workload that a server of flettner's stands in for."""
    names = {green.server, green.like}
    named = (home for home in homes if home.name in names or home.annotations.get(SERVES_AS) in names)
    home = next(named, homes[0])
    if not home.replicas:
        raise ActError(
            f"{home.name} is scaled to 0, and {green.workload.name} serves in its place: scale it up first"
        )
    return home
