"""A pod on the stand-in node: its network namespace, its containers and its status in the API."""

import asyncio
from asyncio import create_task
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import aiohttp

from tests.support.kubernetes.api import Api, ApiError, Json
from tests.support.kubernetes.container import Container
from tests.support.kubernetes.events import now, record
from tests.support.kubernetes.network import Network

_RETRY_S = 0.2


class Pod:
    """`start` once; then `delete`, `fail` or `vanish`. `back_off_s`: before the second restart."""

    def __init__(
        self,
        document: Json,
        *,
        api: Api,
        network: Network,
        folder: Path,
        image_env: Mapping[str, str],
        back_off_s: float,
    ) -> None:
        self.document, self.api, self.image_env, self.back_off_s = document, api, image_env, back_off_s
        self.name, self.uid = str(document["metadata"]["name"]), str(document["metadata"]["uid"])
        self.folder = folder
        folder.mkdir()
        self._network = network
        namespace = document["metadata"]["namespace"]
        self.netns, self.address = network.join(
            f"{namespace}.svc.cluster.local svc.cluster.local cluster.local"
        )
        self.initial = [Container(spec, self) for spec in document["spec"].get("initContainers", ())]
        self.containers = [Container(spec, self) for spec in document["spec"]["containers"]]
        self.terminating = False
        self._failure: Json = {}  # phase, reason and message of a pod that the node ended
        self._began = now()
        self._since: dict[str, tuple[str, str]] = {}  # of a condition: its status and from when on
        self._change = asyncio.Event()
        self._events: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._run_task, self._report_task = create_task(self._run()), create_task(self._report())
        self.changed()

    def container(self, name: str = "") -> Container:
        """The one of this name, or the first."""
        return next(
            container for container in (*self.containers, *self.initial) if name in {"", container.name}
        )

    def changed(self) -> None:
        self._change.set()

    def event(self, reason: str, message: str, *, warns: bool = True) -> None:
        task = create_task(self._record(reason, message, warns=warns))
        self._events.add(task)
        task.add_done_callback(self._events.discard)

    async def delete(self, grace_s: float) -> None:
        """End it as its deletion asks, and confirm the deletion."""
        if not self.terminating:
            self.event("Killing", f"Stopping container {self.containers[0].name}", warns=False)
        await self._end(grace_s)
        options: Json = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        with suppress(ApiError):  # 409: another pod of this name
            await self.api.delete(self._url(), options)

    async def fail(self, reason: str, message: str) -> None:
        """End it; it stays in the API as Failed, as after an eviction by its node."""
        self._failure = {"phase": "Failed", "reason": reason, "message": message}
        self.event(reason, message)
        await self._stop_containers(0)
        await self._write()
        await self._end(0)

    async def vanish(self) -> None:
        """Its processes are gone, and the API server does not know."""
        self._report_task.cancel()
        await self._end(0)

    async def _run(self) -> None:
        for container in self.initial:
            await container.run()
        await asyncio.gather(*(container.run() for container in self.containers))

    async def _stop_containers(self, grace_s: float) -> None:
        self.terminating = True
        await asyncio.gather(*(container.stop(grace_s) for container in (*self.initial, *self.containers)))

    async def _end(self, grace_s: float) -> None:
        await self._stop_containers(grace_s)
        tasks = {self._run_task, self._report_task, *self._events}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._network.leave(self.netns)

    async def _report(self) -> None:
        """Write each change of the status, until the API takes it."""
        while True:
            await self._change.wait()
            self._change.clear()
            with suppress(aiohttp.ClientError, TimeoutError):
                await self._write()
                continue
            self._change.set()
            await asyncio.sleep(_RETRY_S)

    async def _record(self, reason: str, message: str, *, warns: bool) -> None:
        with suppress(aiohttp.ClientError, ApiError, TimeoutError):
            await record(self.api, self.document, "kubelet", reason, message, warns=warns)

    async def _write(self) -> None:
        body = {"metadata": {"uid": self.uid}, "status": self.status()}
        try:
            await self.api.patch(f"{self._url()}/status", body)
        except ApiError as error:
            if error.status not in {404, 409}:  # it is gone, or another pod has its name
                raise

    def _url(self) -> str:
        return f"/api/v1/namespaces/{self.document['metadata']['namespace']}/pods/{self.name}"

    def status(self) -> Json:
        """A PodStatus."""
        initialized = all("terminated" in container.state for container in self.initial)
        ready = not self._failure and all(container.ready for container in self.containers)
        holds = {"Initialized": initialized, "Ready": ready, "ContainersReady": ready, "PodScheduled": True}
        return {
            "phase": self._phase(),
            "hostIP": self._network.address,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "startTime": self._began,
            "conditions": [self._condition(kind, value) for kind, value in holds.items()],
            "initContainerStatuses": [container.status() for container in self.initial],
            "containerStatuses": [container.status() for container in self.containers],
            **self._failure,
        }

    def _phase(self) -> str:
        if not all(container.has_run for container in self.containers):
            return "Pending"
        ended = [
            container.state["terminated"]["exitCode"]
            for container in self.containers
            if "terminated" in container.state
        ]
        if len(ended) < len(self.containers) or self.document["spec"].get("restartPolicy") == "Always":
            return "Running"
        return "Failed" if any(ended) else "Succeeded"

    def _condition(self, kind: str, holds: bool) -> Json:
        status = "True" if holds else "False"
        if self._since.get(kind, ("", ""))[0] != status:
            self._since[kind] = status, now()
        condition = {"type": kind, "status": status, "lastTransitionTime": self._since[kind][1]}
        if not holds and kind in {"Ready", "ContainersReady"}:
            unready = " ".join(container.name for container in self.containers if not container.ready)
            condition["reason"] = "ContainersNotReady"
            condition["message"] = f"containers with unready status: [{unready}]"
        return condition
