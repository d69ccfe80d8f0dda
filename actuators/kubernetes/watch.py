"""Watch the pods of a server until it is gone, and report when it stops answering.

The kubelet restarts containers and a controller replaces pods; that heals an operator's
workload. A green Deployment that restarts is reported as gone: its setting has failed. An outage of the API
server says nothing about the server, which is probed over HTTP.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from flettner.actuators.kubernetes.discovery import find_pods, join_addresses, read_workload
from flettner.actuators.kubernetes.labels import SERVES_AS
from flettner.actuators.kubernetes.pods import Pod, newest_first
from flettner.actuators.kubernetes.scale import SCALED_BY_FLETTNER, fault_of_none
from flettner.actuators.kubernetes.start import read_log
from flettner.actuators.kubernetes.workload import Workload, is_complete
from flettner.actuators.vllm.fault import Fault, Report
from flettner.actuators.vllm.probe import HealthAnswer, OpenAiProbe
from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.documents import Json
from flettner.vllm_facts.values import Setting

log = structlog.get_logger(__name__)

_LOOK_S = 60.0  # between two looks, without a change of a pod
_KUBELET_S = 3.0  # from the end of a process to the status that says so; the kubelet looks each second


@dataclass(slots=True, kw_only=True)
class Watch:
    """One server by its workload. `report` is called each time that the server stops answering."""

    client: KubernetesClient
    server: str
    workload: Workload
    every_s: float
    timeout_s: float
    misses: int
    report: Report
    setting: Setting  # that the caller knows, as the start and the number of replicas
    start: Setting
    replicas: int
    address: str = ""  # of the pods that are read in advise mode, in which no Service is created
    _pods: list[Pod] = field(default_factory=list, init=False)
    _restarts: dict[str, int] = field(default_factory=dict, init=False)  # by the name of a pod
    _over: set[str] | None = field(default=None, init=False)  # uids of ended pods that are known
    _generation: int = field(default=0, init=False)  # of the workload whose flags are compared
    _removed: str = field(default="", init=False)  # the pod that a third party deleted last
    _log: tuple[str, ...] = field(default=(), init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def until_gone(self) -> tuple[Fault | None, tuple[str, ...]]:
        """Return how the server ended, and its last log lines; None: its owner has changed it."""
        cached = self.client.cached
        tasks = [
            asyncio.create_task(self._follow(cached.changes(kubernetes.POD, self.workload.selector))),
            asyncio.create_task(
                self._follow(cached.changes(self.workload.resource, name=self.workload.name))
            ),
            asyncio.create_task(self._probe()),
        ]
        try:
            while True:
                self._changed.clear()
                with suppress(ActError):  # the API server is away
                    if (fault := await self._check()) is not None:
                        return fault, self._log
                    if await self._has_changed():
                        return None, ()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._changed.wait()
                for task in tasks:
                    if task.done():
                        task.result()  # they end by an error only
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _follow(self, changes: AsyncIterator[None]) -> None:
        """Wake the check at each change."""
        async for _ in changes:
            self._changed.set()

    async def _check(self) -> Fault | None:
        """Return why it is gone; None if it is not."""
        document = await self._read_workload()
        if document is None:
            return Fault(f"was removed by a third party: {self.workload.full_name} is gone", external=True)
        self._pods = await find_pods(self.client.cached, self.workload)
        annotations = document["metadata"].get("annotations") or {}
        if not document["spec"].get("replicas", 1):
            return fault_of_none(annotations)
        if annotations.get(SERVES_AS, self.server) != self.server:  # its successor began after its pods ended
            return SCALED_BY_FLETTNER
        if self._over is None:  # evicted before; such a pod stays until a person deletes it
            self._over = {pod.uid for pod in self._pods if pod.over}
        self._removed = next((pod.name for pod in self._pods if pod.ending), self._removed)
        for pod in newest_first(self._pods):
            restarts = self._restarts.setdefault(pod.name, 0 if self.workload.ours else pod.restarts)
            if pod.restarts > restarts or (pod.over and pod.uid not in self._over):
                self._restarts[pod.name] = pod.restarts
                self._over |= {pod.uid} if pod.over else set()
                self._log = await read_log(self.client, self.workload, pod) or self._log
                fault = pod.fault(self._log) or Fault("was restarted by the kubelet")
                if self.workload.ours and not fault.external:
                    return fault
                if any(other.active and other.ready for other in self._pods):
                    log.warning("kubernetes.pod_failed", workload=self.workload.name, why=fault.why)
                else:
                    self.report(fault, self._log, gone=False)
        return None

    async def _read_workload(self) -> Json | None:
        """Return it as the watch has told; before it is said to be gone or idle, it is read."""
        name, resource = self.workload.name, self.workload.resource
        document = await self.client.cached.get(resource, name)
        if document and document["spec"].get("replicas", 1):
            return document
        return await self.client.get(resource, name)

    async def _has_changed(self) -> bool:
        """Whether the operator's workload has other flags, image or pods than the caller knows, all ready.

        In advise mode also while not all are: which pods run is what the sensors read.
        """
        now_at = join_addresses(self._pods, self.workload.serve.port)
        if self.address and now_at and now_at != self.address:
            return True
        document = await self.client.cached.get(self.workload.resource, self.workload.name)
        if self.workload.ours or document is None or not is_complete(document):
            return False
        current = Workload.parse(document)
        if current.replicas != self.replicas and not current.remembered_replicas:
            return True
        generation = document["metadata"].get("generation", 0)
        if generation == self._generation:
            return False
        self._generation = generation
        now = await read_workload(self.client.cached, document)
        return not now.problem and (now.serve.setting, now.start) != (self.setting, self.start)

    async def _probe(self) -> None:
        """Probe /health of every pod for ever; the server is silent when none answers."""
        missed, reported = 0, False
        while True:
            answer = await self._ask_pods()
            missed = missed + 1 if answer.why else 0
            self._removed = self._removed if answer.why else ""
            reported = reported and bool(missed)
            if missed >= self.misses and not reported and not await self._has_ended(answer):
                reported = True
                why = f"failed its health check {missed} times in a row: {answer.why}"
                if self._removed:
                    why += f"; a third party deleted its pod {self._removed}"
                self.report(Fault(why, external=bool(self._removed)), self._log, gone=False)
            await asyncio.sleep(self.every_s)

    async def _has_ended(self, answer: HealthAnswer) -> bool:
        """Whether a container has ended: `_check` reports that, once the kubelet has."""
        if answer.refused:
            await asyncio.sleep(_KUBELET_S)
        try:
            pods = await find_pods(self.client.cached, self.workload)
        except ActError:
            return False
        over = self._over or set()
        return any(
            (pod.over and pod.uid not in over) or pod.restarts > self._restarts.get(pod.name, 0)
            for pod in pods
        )

    async def _ask_pods(self) -> HealthAnswer:
        """Return the first answer if no pod is healthy; a healthy one if one is, or none is known yet."""
        port = self.workload.serve.port
        pods = [pod for pod in self._pods if pod.ip and pod.active]
        probes = [OpenAiProbe(address=pod.address(port)).health(self.timeout_s) for pod in pods]
        answers = await asyncio.gather(*probes)
        if not answers and self._pods:
            return HealthAnswer(why="it has no running pod")
        return answers[0] if answers and all(answer.why for answer in answers) else HealthAnswer()
