"""After a promotion: write the change into the workload that people own, and give it the traffic.

While green serves, that workload is idle. It is scaled to 0, so that its pods need no further GPUs, and
changed in one write. It gets one pod after the other; each is warmed up and serves beside green's, of which
one ends. At last the Service of the new server selects its pods alone, and green's own Deployment ends. The
server keeps its name and its address. If the changed workload does not become available, it is scaled to 0
again, and green's Deployment goes on to serve.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from flettner.actuators.kubernetes.autoscaler import find_conflict
from flettner.actuators.kubernetes.discovery import ServerEntry, find_pods, read_workload
from flettner.actuators.kubernetes.labels import (
    CHANGE,
    DEPLOYMENT,
    EPOCH,
    REPLICAS,
    SERVES_AS,
    UPGRADED,
    service_labels,
)
from flettner.actuators.kubernetes.pods import Pod
from flettner.actuators.kubernetes.preflight import obstacles
from flettner.actuators.kubernetes.scale import wait_for_last_requests, wait_until_gone
from flettner.actuators.kubernetes.service import READY_ONLY
from flettner.actuators.kubernetes.start import NoNodeError, Starter
from flettner.actuators.kubernetes.upgrade import (
    change_container,
    describe_names,
    pin_by_pods,
    present,
    upgraded,
)
from flettner.actuators.kubernetes.workload import Workload
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.upgrade import IMAGE
from flettner.agent.retrying import retry
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient, patiently
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import AwayError, ForbiddenError
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.values import Setting, Value

log = structlog.get_logger(__name__)

FORBIDDEN_S = 30.0  # a right that is missing for longer is not given
_ASK_AGAIN_S = 1.0

WarmUp = Callable[[str], Awaitable[None]]  # by the address of a pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """`old`: the server whose workload people own. `new`: the server that replaces it."""

    starter: Starter
    old: ServerEntry
    new: ServerEntry
    start_s: float  # deadline of the start of a pod
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
            changed = await self._change_when_allowed()
        except AwayError:
            raise
        except (ActError, FlagError) as error:
            log.warning("kubernetes.handover_failed", workload=self.old.workload.name, why=str(error))
            await self._give_back()
            return False
        await self.switch(changed)
        return True

    async def _change_when_allowed(self) -> Workload:
        """An API server that has just started forbids every call until it knows the roles."""
        asking = AsyncRetrying(
            retry=retry_if_exception_type(ForbiddenError),
            wait=wait_fixed(_ASK_AGAIN_S),
            stop=stop_after_delay(FORBIDDEN_S),
            reraise=True,
        )
        return await retry(asking, self._change)

    async def _change(self) -> Workload:
        """Return the workload with the new flags, available and warm. Raises ActError, FlagError.

        Its pods serve beside green's as soon as they are warm, and green has one less for each; where no node
        has room for a pod more, green's ends before.
        """
        workload = await self._read()
        if not self._is_written(workload):
            if conflict := await find_conflict(self.client, [workload], keep=0):
                raise ActError(conflict, external=True)
            await self.starter.scaler.scale_down(workload)
            workload = await self._write()
        wanted, spare = workload.usual_replicas, 1
        for replicas in range(workload.replicas, wanted + 1):
            await self._shrink_green(wanted - replicas + spare)
            if spare and wanted > 1:
                try:
                    workload = await self._grow(workload, replicas)
                    continue
                except NoNodeError:
                    spare = 0
                    await self._shrink_green(wanted - replicas)
            workload = await self._grow_if_room(workload, replicas, is_last=1 < replicas == wanted)
        return workload

    async def _grow_if_room(self, workload: Workload, replicas: int, *, is_last: bool) -> Workload:
        """Without room for the last pod those that serve go on, as green has none left: it starts later."""
        try:
            return await self._grow(workload, replicas)
        except NoNodeError as error:
            if not is_last:
                raise
            log.warning("kubernetes.pod_has_no_node", workload=workload.name, why=error.why)
            await self._join(workload)
            return workload

    async def _grow(self, workload: Workload, replicas: int) -> Workload:
        """Return the workload once at least `replicas` of its pods serve beside green's."""
        now = await self._read()
        scaled = await self.starter.scaler.scale(workload, max(replicas, now.replicas))
        scaled = await patiently(lambda: read_workload(self.client, scaled.document))
        await self.starter.wait_until_available(scaled, self.start_s)
        await self._join(scaled)
        if (await self._read()).template != scaled.template:
            raise ActError(f"{scaled.name} was changed by a third party while it started", external=True)
        return scaled

    async def _join(self, workload: Workload) -> None:
        """Warm up the pods that are new, and let the name of the new server resolve to them, too."""
        serving = service_labels(self.starter.site, self.new.server)
        pods = await patiently(lambda: find_pods(self.client, workload))
        ready = [pod for pod in pods if pod.active and pod.ready]
        new = [pod for pod in ready if not serving.items() <= pod.labels.items()]
        await asyncio.gather(*(self.warm_up(pod.address(workload.serve.port)) for pod in new))
        for pod in new:
            await self.client.patch(kubernetes.POD, pod.name, {"metadata": {"labels": serving}})

    async def _read_green(self) -> Workload | None:
        """Return green's Deployment; None: a third party has removed it, and the handover goes on."""
        name = self.new.workload.name
        document = await patiently(lambda: self.client.get(kubernetes.DEPLOYMENT, name))
        return Workload.parse(document) if document else None

    async def _shrink_green(self, keep: int) -> None:
        green = await self._read_green()
        if green is not None and green.replicas > keep:
            await self.starter.scaler.shrink(replace(self.new, workload=green), keep)

    async def _give_back(self) -> None:
        """After a failure: the operator's pods end their requests, and green has all its pods again."""
        if document := await patiently(
            lambda: self.client.get(self.old.workload.resource, self.old.workload.name)
        ):
            home = replace(self.old, workload=Workload.parse(document))
            await self.starter.scaler.shrink(home, 0)
        if (green := await self._read_green()) is not None:
            await self.starter.scaler.scale(green, green.usual_replicas)

    async def _read(self) -> Workload:
        name = self.old.workload.full_name
        document = await patiently(lambda: self.client.get(name.resource, name.name))
        if document is None:
            raise ActError(f"{name} was removed by a third party", external=True)
        return await patiently(lambda: read_workload(self.client, document))

    def _is_written(self, workload: Workload) -> bool:
        """Whether an interrupted handover has got so far."""
        written = workload.annotations.get(SERVES_AS) == self.new.server and workload.replicas > 0
        as_green = upgraded(workload, self.new.workload.start).container_document
        return (
            written
            and workload.serve.setting == self.new.workload.serve.setting
            and workload.container_document == as_green
        )

    async def _write(self) -> Workload:
        """Write the flags, the image, the variables, the number of replicas and the reason in one change.

        If a third party scaled the workload to 0, its number of replicas is that of green, which was made
        like it.
        """

        async def to_wanted(document: Json) -> list[Json]:
            workload = await read_workload(self.client, document)
            if problems := obstacles(workload):
                raise ActError(f"{workload.name}: {'; '.join(problems)}", external=True)
            return self._make_change(workload, start)

        start = await self._find_start()
        name = self.old.workload.full_name
        written = await self.client.update(name.resource, name.name, to_wanted)
        return await patiently(lambda: read_workload(self.client, written))

    async def _find_start(self) -> Setting:
        """Return the image and the variables that upgrades gave green, with the digest that its pods run."""
        start = self.new.workload.start
        if not isinstance(image := start.get(IMAGE), str):
            return start
        pods = await patiently(lambda: find_pods(self.client, self.new.workload))
        return {**start, IMAGE: pin_by_pods(image, (pod for pod in pods if pod.active and pod.ready))}

    def _make_change(self, workload: Workload, start: Setting) -> list[Json]:
        wanted = self.new.workload.serve.setting
        before = {**workload.serve.setting, **present(workload, start)}
        change = _describe(before, {**wanted, **start})
        annotations = {SERVES_AS: self.new.server, CHANGE: change}
        if change == "{}":  # of an attempt that was interrupted, or failed
            annotations[CHANGE] = workload.annotations.get(CHANGE, change)
        if start:
            annotations[UPGRADED] = describe_names(start)
        replicas = workload.remembered_replicas or self.new.workload.usual_replicas
        if replicas > 1:
            annotations[REPLICAS] = str(replicas)  # it begins with one pod
        return json_patch(workload, change_container(workload, wanted, start), annotations)

    async def switch(self, workload: Workload) -> None:
        """Let the name of the new server resolve to the changed workload's pods; then end green's."""
        serving = service_labels(self.starter.site, self.new.server)
        change: Json = {
            "metadata": {
                "annotations": {DEPLOYMENT: workload.name},
                "labels": {EPOCH: str(self.starter.site.epoch)},
            },
            "spec": {"selector": {**dict.fromkeys(serving), **workload.selector}, **READY_ONLY},
        }
        await self.client.patch(kubernetes.SERVICE, self.new.service, change)
        for pod in await patiently(lambda: find_pods(self.client, workload)):
            if serving.keys() & pod.labels.keys():
                unmarked: Json = {"metadata": {"labels": dict.fromkeys(serving)}}
                await self.client.patch(kubernetes.POD, pod.name, unmarked)
        await self.end_green(self.new.workload)

    async def end_green(self, green: Workload) -> None:
        """Delete green's own Deployment once no client has its addresses and its last request has ended.

        Raises ActError if the name of the server resolves to green's pods again: its Service was deleted by a
        third party, and restored for the server that was found.
        """

        async def find() -> list[Pod]:
            service = await self.client.cached.get(kubernetes.SERVICE, self.new.service)
            if service is None or service["metadata"]["annotations"].get(DEPLOYMENT) == green.name:
                why = f"the Service {self.new.service} was deleted by a third party: the handover is repeated"
                raise ActError(why, external=True)
            return await find_pods(self.client.cached, green)

        await wait_for_last_requests(find, green.serve.port, self.new.server)
        await self.client.delete(kubernetes.DEPLOYMENT, green.name)
        await wait_until_gone(self.client, green)


def json_patch(
    workload: Workload, fields: Mapping[str, object], annotations: Mapping[str, str]
) -> list[Json]:
    """Return the one change of the operator's workload; refused if it has changed since it was read."""
    container = f"/spec/template/spec/containers/{workload.container}"
    copied = {name: value for name, value in workload.annotations.items() if name != REPLICAS}
    return [
        {"op": "add", "path": "/metadata/resourceVersion", "value": workload.version},
        {"op": "add", "path": "/metadata/annotations", "value": {**copied, **annotations}},
        {"op": "add", "path": "/spec/replicas", "value": 1},
        *({"op": "add", "path": f"{container}/{name}", "value": value} for name, value in fields.items()),
    ]


def _describe(before: Setting, after: Mapping[str, Value]) -> str:
    """Return the changed knobs as JSON: {"max_num_seqs": [8, 16]}."""
    knobs = sorted(before.keys() | after.keys())
    changed = {
        knob: [before.get(knob), after.get(knob)] for knob in knobs if before.get(knob) != after.get(knob)
    }
    return json.dumps(changed)
