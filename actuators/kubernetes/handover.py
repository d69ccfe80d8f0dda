"""After a promotion: write the new flags into the workload that people own, and give it the traffic.

While green serves, that workload is idle. It is scaled to 0, so that its pods need no further GPUs, changed
in one write, scaled up, warmed up; then the Service of the new server selects its pods, and green's own
Deployment ends. The server keeps its name and its address. If the changed workload does not become
available, it is scaled to 0 again, and green's Deployment goes on to serve.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from actuators.kubernetes.discovery import FoundServer, find_pods, read_workload
from actuators.kubernetes.labels import CHANGE, DEPLOYMENT, EPOCH, REPLICAS, SERVES_AS
from actuators.kubernetes.preflight import obstacles
from actuators.kubernetes.scale import scale_down, wait_until_gone
from actuators.kubernetes.start import Starter
from actuators.kubernetes.workload import Workload
from actuators.vllm.probe import OpenAiProbe
from agent.domain.errors import ActError
from kubernetes_api import client as kubernetes
from kubernetes_api.client import KubernetesClient, patiently
from kubernetes_api.documents import Json
from kubernetes_api.errors import AwayError
from vllm_facts.errors import FlagError
from vllm_facts.values import Setting, Value

log = structlog.get_logger(__name__)

_DNS_S = 40.0
"""Until every client of the Service's name has the new addresses: CoreDNS caches them for 30 s at most (its
Kubernetes default), Envoy asks again every 5 s."""

_POLL_S = 1.0

WarmUp = Callable[[str], Awaitable[None]]  # by the address of a pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """`old`: the server whose workload people own. `new`: the server that replaces it."""

    starter: Starter
    old: FoundServer
    new: FoundServer
    start_s: float  # deadline of the start
    drain_s: float  # for the last requests of green's pods
    warm_up: WarmUp

    @property
    def client(self) -> KubernetesClient:
        return self.starter.client

    async def perform(self) -> bool:
        """Return whether the server has moved; if not, green goes on to serve.

        Idempotent: an interrupted handover goes on. Raises AwayError while the API server is away.
        """
        if not self.new.workload.ours:  # it has moved already
            left = await self.client.get(kubernetes.DEPLOYMENT, self.new.service)
            if left is not None:
                await self.end_green(await read_workload(self.client, left))
            return True
        try:
            changed = await self._change()
        except AwayError:
            raise
        except (ActError, FlagError) as error:
            log.warning("kubernetes.handover_failed", workload=self.old.workload.name, why=str(error))
            await scale_down(self.client, self.starter.site, self.old.workload)
            return False
        await self.switch(changed)
        return True

    async def _change(self) -> Workload:
        """Return the workload with the new flags, available and warm. Raises ActError, FlagError."""
        workload = await self._read()
        if not self._is_written(workload):
            await scale_down(self.client, self.starter.site, workload)
            workload = await self._write()
        await self.starter.wait_until_available(workload, self.start_s)
        await self._warm_up(workload)
        if (await self._read()).template != workload.template:
            raise ActError(f"{workload.name} was changed by a third party while it started", external=True)
        return workload

    async def _read(self) -> Workload:
        name = self.old.workload.full_name
        found = await patiently(lambda: self.client.get(name.resource, name.name))
        if found is None:
            raise ActError(f"{name} was removed by a third party", external=True)
        return await patiently(lambda: read_workload(self.client, found))

    def _is_written(self, workload: Workload) -> bool:
        """Whether an interrupted handover has got so far."""
        written = workload.annotations.get(SERVES_AS) == self.new.server and workload.replicas > 0
        return written and workload.serve.setting == self.new.workload.serve.setting

    async def _write(self) -> Workload:
        """Write the flags, the number of replicas and the reason in one change.

        If a third party scaled the workload to 0, its number of replicas is that of green, which was made
        like it.
        """

        async def to_wanted(document: Json) -> list[Json]:
            workload = await read_workload(self.client, document)
            if found := obstacles(workload):
                raise ActError(f"{workload.name}: {'; '.join(found)}", external=True)
            return self._make_change(workload)

        name = self.old.workload.full_name
        written = await self.client.update(name.resource, name.name, to_wanted)
        return await patiently(lambda: read_workload(self.client, written))

    def _make_change(self, workload: Workload) -> list[Json]:
        wanted = self.new.workload.serve.setting
        annotations = {SERVES_AS: self.new.server, CHANGE: _describe(workload.serve.setting, wanted)}
        if workload.serve.setting == wanted:  # of an attempt that was interrupted, or failed
            annotations[CHANGE] = workload.annotations.get(CHANGE, annotations[CHANGE])
        replicas = workload.replicas or workload.remembered_replicas or self.new.workload.usual_replicas
        return json_patch(workload, workload.with_setting(wanted), replicas, annotations)

    async def _warm_up(self, workload: Workload) -> None:
        found = await patiently(lambda: find_pods(self.client, workload))
        addresses = [pod.address(workload.serve.port) for pod in found if pod.active and pod.ip]
        await asyncio.gather(*(self.warm_up(address) for address in addresses))

    async def switch(self, workload: Workload) -> None:
        """Let the name of the new server resolve to the changed workload's pods; then end green's."""
        change: Json = {
            "metadata": {
                "annotations": {DEPLOYMENT: workload.name},
                "labels": {EPOCH: str(self.starter.site.epoch)},
            },
            "spec": {"selector": {**dict.fromkeys(self.new.workload.selector), **workload.selector}},
        }
        await self.client.patch(kubernetes.SERVICE, self.new.service, change)
        await self.end_green(self.new.workload)

    async def end_green(self, green: Workload) -> None:
        """Delete green's own Deployment once no client has its addresses and its last request has ended."""
        await asyncio.sleep(_DNS_S)
        await self._drain(green)
        await self.client.delete(kubernetes.DEPLOYMENT, green.name)
        await wait_until_gone(self.client, green)

    async def _drain(self, green: Workload) -> None:
        """Wait until green's pods have no request, or for the deadline."""
        port = green.serve.port
        end_s = asyncio.get_running_loop().time() + self.drain_s
        while asyncio.get_running_loop().time() < end_s:
            found = await patiently(lambda: find_pods(self.client.cached, green))
            pods = [pod for pod in found if pod.active and pod.ip]
            counts = await asyncio.gather(*(OpenAiProbe(address=pod.address(port)).busy() for pod in pods))
            if not any(counts):
                return
            await asyncio.sleep(_POLL_S)


def json_patch(
    workload: Workload, fields: Mapping[str, object], replicas: int, annotations: Mapping[str, str]
) -> list[Json]:
    """Return the one change of the operator's workload; refused if it has changed since it was read."""
    container = f"/spec/template/spec/containers/{workload.container}"
    kept = {name: value for name, value in workload.annotations.items() if name != REPLICAS}
    return [
        {"op": "add", "path": "/metadata/resourceVersion", "value": workload.version},
        {"op": "add", "path": "/metadata/annotations", "value": {**kept, **annotations}},
        {"op": "add", "path": "/spec/replicas", "value": replicas},
        *({"op": "add", "path": f"{container}/{name}", "value": value} for name, value in fields.items()),
    ]


def _describe(before: Setting, after: Mapping[str, Value]) -> str:
    """Return the changed knobs as JSON: {"max_num_seqs": [8, 16]}."""
    knobs = sorted(before.keys() | after.keys())
    changed = {
        knob: [before.get(knob), after.get(knob)] for knob in knobs if before.get(knob) != after.get(knob)
    }
    return json.dumps(changed)
