"""Start the Deployment of a server, or scale a stopped workload up again; wait until its pods are healthy.

A failed start leaves no Deployment of flettner's; a workload that people own stays scaled up.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from flettner.actuators.host.server_log import format_lines
from flettner.actuators.kubernetes.discovery import (
    ServerEntry,
    find_pods,
    find_servers,
    read_workload,
)
from flettner.actuators.kubernetes.green import find_selectors, make_deployment
from flettner.actuators.kubernetes.labels import EPOCH, object_name
from flettner.actuators.kubernetes.pods import Pod, newest_first
from flettner.actuators.kubernetes.scale import Scaler, wait_until_gone
from flettner.actuators.kubernetes.service import READY_ONLY, create_service
from flettner.actuators.kubernetes.statefulset import count_turns
from flettner.actuators.kubernetes.workload import Workload, WorkloadName
from flettner.actuators.vllm.fault import Fault
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient, patiently
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import ConflictError
from flettner.vllm_facts.errors import FlagError

_POLL_S = 1.0
_NO_NODE_S = 60.0
"""How long a pod may be unschedulable: the pod that it replaces may still end. A cluster autoscaler that adds
a node says so in an event (TriggeredScaleUp); then the deadline of the start counts."""

_LOG_LINES = 200
_SCALES_UP = "TriggeredScaleUp"


class NoNodeError(ActError):
    """No node has room for a pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    client: KubernetesClient
    site: Site
    adopted: Sequence[WorkloadName]

    @property
    def scaler(self) -> Scaler:
        return Scaler(client=self.client, site=self.site)

    async def launch(self, server: Server, servers: Mapping[str, ServerEntry], deadline_s: float) -> Server:
        """Return the healthy server with its address. Raises ActError; the workload is then as before."""
        before = servers.get(server.name)
        deadline_s *= 1 if before is None else count_turns(before.workload)
        started: ServerEntry | None = None
        try:
            async with asyncio.timeout(deadline_s):
                started = await self._start(server, servers)
                await self._wait_for_pods(started.server, started.workload, server.replicas)
        except TimeoutError as error:
            late = await self._late(server.name, started.workload if started else None, deadline_s)
            await self._undo(server, before)
            raise late from error
        except FlagError as error:
            await self._undo(server, before)
            raise ActError(f"{server.name} cannot be started: {error}") from error
        except BaseException:
            await self._undo(server, before)
            raise
        return replace(started.to_server(), like=server.like or started.like)

    async def wait_until_available(self, workload: Workload, deadline_s: float) -> None:
        """Wait until every pod of a workload is healthy. `deadline_s`: of one start. Raises ActError."""
        deadline_s *= count_turns(workload)
        try:
            async with asyncio.timeout(deadline_s):
                await self._wait_for_pods(workload.name, workload)
        except TimeoutError as error:
            raise await self._late(workload.name, workload, deadline_s) from error

    async def _start(self, server: Server, servers: Mapping[str, ServerEntry]) -> ServerEntry:
        """Return the server with a workload that is scaled up and a Service."""
        entry = servers.get(server.name)
        if entry is None:
            entry = await self._create(server, servers)
        else:
            if entry.service and entry.epoch < self.site.epoch:  # an older daemon must not undo its start now
                epoch = {"metadata": {"labels": {EPOCH: str(self.site.epoch)}}}
                await self.client.patch(kubernetes.SERVICE, entry.service, epoch)
            await self.scaler.finish(entry)
            if entry.service and entry.ours and server.replicas > entry.workload.usual_replicas:
                await self.client.patch(kubernetes.SERVICE, entry.service, {"spec": READY_ONLY})
            await self.scaler.claim(entry.workload, server.replicas)
        if not entry.service:
            await create_service(self.client, self.site, entry)
        again = (await find_servers(self.client, self.site, self.adopted)).get(server.name)
        if again is None:
            raise ActError(f"{server.name} was removed by a third party while it started", external=True)
        return again

    async def _create(self, server: Server, servers: Mapping[str, ServerEntry]) -> ServerEntry:
        """Return the server with a new Deployment, or with that of an earlier attempt."""
        pattern = choose_pattern(server, servers)
        selectors = await find_selectors(self.client, pattern.workload)
        body = make_deployment(self.site, replace(server, like=pattern.server), pattern.workload, selectors)
        with suppress(ConflictError):
            await self.client.create(kubernetes.DEPLOYMENT, body)
        made = await read_workload(self.client, body)
        return ServerEntry(server=server.name, workload=made, like=pattern.server)

    async def _wait_for_pods(self, name: str, workload: Workload, enough: int | None = None) -> None:
        """Return once each pod is ready and answers /health. Raises ActError for a fault that is certain.

        Pods that were evicted before, or that serve already, are no fault of this start. `enough`: return
        also once this many serve, as an autoscaler may want more pods than there are nodes for.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        over: set[str] | None = None
        serving: set[str] | None = None
        while True:
            all_pods = await patiently(lambda: find_pods(self.client.cached, workload))
            over = {pod.uid for pod in all_pods if pod.over} if over is None else over
            serving = {pod.uid for pod in all_pods if pod.ready} if serving is None else serving
            pods = [pod for pod in all_pods if not pod.ending and pod.uid not in over]
            ready = [pod for pod in pods if pod.ready]
            if enough and len(ready) >= enough and await all_healthy(ready, workload.serve.port):
                return
            for pod in newest_first(pods):
                if pod.uid not in serving and (pod.restarts or pod.fault() is not None):
                    raise await self._failure(name, workload, pod)
                if pod.unschedulable and clock() - began > _NO_NODE_S:
                    await self._check_autoscaler(name, pod, workload)
            now = await self._read_now(workload)
            if len(pods) >= now["spec"].get("replicas", 1) and await all_healthy(pods, workload.serve.port):
                return
            if (refusal := _find_refusal(now)) and clock() - began > _NO_NODE_S:
                raise ActError(f"{name}: its pods cannot be created: {refusal}", external=True)
            await asyncio.sleep(_POLL_S)

    async def _read_now(self, workload: Workload) -> Json:
        """Return its document: people and autoscalers scale it meanwhile, too. Raises ActError."""
        document = await patiently(lambda: self.client.cached.get(workload.resource, workload.name))
        if document is None or not document["spec"].get("replicas", 1):
            why = f"{workload.full_name} was removed or scaled to 0 by a third party"
            raise ActError(why, external=True)
        return document

    async def _failure(self, name: str, workload: Workload, pod: Pod) -> ActError:
        log = await read_log(self.client, workload, pod)
        fault = pod.fault(log) or Fault("was restarted")
        return ActError(f"{name}: {fault.why}", log[-30:], external=fault.external)

    async def _check_autoscaler(self, name: str, pod: Pod, workload: Workload) -> None:
        """Raises NoNodeError unless a cluster autoscaler adds a node for the pod."""
        by_pod = {"involvedObject.uid": pod.uid}
        events = await patiently(lambda: self.client.find(kubernetes.EVENT, fields=by_pod))
        if any(event.get("reason") == _SCALES_UP for event in events):
            return
        raise NoNodeError(_describe_missing_node(name, pod, workload), external=True)

    async def _late(self, name: str, workload: Workload | None, deadline_s: float) -> ActError:
        """Return why it was not healthy at its deadline."""
        with suppress(ActError):
            for pod in await find_pods(self.client.cached, workload) if workload else ():
                if workload and pod.active and pod.unschedulable:
                    return NoNodeError(_describe_missing_node(name, pod, workload), external=True)
        return ActError(f"{name} was not healthy within {deadline_s:g} s")

    async def _undo(self, server: Server, before: ServerEntry | None) -> None:
        """Take away what a failed start has added: the server, or further pods.

        A workload that people own, and that flettner had stopped, stays scaled up: it is to serve again, as
        soon as there is room for it. One that a third party has given still more replicas keeps them.
        """
        with suppress(ActError):
            entry = (await find_servers(self.client, self.site, self.adopted)).get(server.name)
            if entry is None or entry.epoch > self.site.epoch:
                return
            if before is not None and before.workload.replicas:
                if before.workload.replicas < entry.workload.replicas <= server.replicas:
                    await self.scaler.shrink(entry, before.workload.replicas)
            elif entry.workload.ours:
                await remove_server(self.client, self.site, entry)


def _describe_missing_node(name: str, pod: Pod, workload: Workload) -> str:
    needs = f"{workload.gpus} GPUs" if workload.gpus else "the resources of a pod"
    return (
        f"{name}: no node takes the pod {pod.name}, which needs {needs}: {pod.unschedulable}; "
        'add a node, or write in [targets.engine] strategy = "replace", for one pod "swap"'
    )


def choose_pattern(server: Server, servers: Mapping[str, ServerEntry]) -> ServerEntry:
    """Return the server that a new one is made like: `server.like`, else an adopted one, else any."""
    others = sorted(servers.values(), key=lambda other: (other.workload.ours, other.server))
    for pattern in [*filter(None, (servers.get(server.like),)), *others]:
        if pattern.server != server.name:
            return pattern
    raise ActError(f"{server.name} cannot be made: the target has no workload: create the first one yourself")


async def remove_server(client: KubernetesClient, site: Site, entry: ServerEntry) -> None:
    """Delete the Deployment that flettner created for a server, and its Service; wait for its pods' end."""
    await client.delete(kubernetes.DEPLOYMENT, entry.workload.name)
    await wait_until_gone(client, entry.workload)
    await client.delete(kubernetes.SERVICE, object_name(site, entry.server))


def _find_refusal(document: Json) -> str:
    """Return why the API server refuses pods of a Deployment, such as an exceeded quota."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    for condition in conditions:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return str(condition.get("message", ""))
    return ""


async def all_healthy(pods: Sequence[Pod], port: int) -> bool:
    if not all(pod.ready and pod.ip for pod in pods):
        return False
    answers = await asyncio.gather(*(OpenAiProbe(address=pod.address(port)).health() for pod in pods))
    return not any(answer.why for answer in answers)


async def read_log(client: KubernetesClient, workload: Workload, pod: Pod) -> tuple[str, ...]:
    """Return the last lines of the pod's vLLM container, of its previous run if it was restarted."""
    with suppress(ActError):
        text = await client.log(pod.name, pod.container, _LOG_LINES, previous=pod.restarts > 0)
        return format_lines(text, workload.serve.secrets)
    return ()
