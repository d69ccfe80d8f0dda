"""A stand-in for a machine with a kubelet: runs the pods of a test as processes of this host."""

import asyncio
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path

from tests.support.docker_images import SIMULATOR
from tests.support.kubernetes.api import Api, Json
from tests.support.kubernetes.events import now
from tests.support.kubernetes.kubelet_logs import LogServer
from tests.support.kubernetes.network import Network
from tests.support.kubernetes.pod import Pod
from tests.support.kubernetes.programs import REPOSITORY

_STUB = """#!/bin/sh
shift # "serve"
model=$1
shift
exec {python} {script} --host 0.0.0.0 --model "$model" "$@"
"""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_IMAGE_ENV = {"HOME": "/root", "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
_ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110"}


class Node:
    """`start` registers it, `stop` ends it.

    An image whose name begins with `stub` holds stub_vllm.py; one with the tag `missing` cannot be pulled;
    all others hold the simulator.
    """

    def __init__(
        self, api: Api, network: Network, folder: Path, *, name: str, labels: dict[str, str], gpus: int
    ) -> None:
        self.name, self.gpus, self._labels = name, gpus, labels
        self._api, self._network, self._folder = api, network, folder
        self.pods: dict[str, Pod] = {}  # by uid
        self.image_env: Mapping[str, Mapping[str, str]] = {}  # by image without its digest
        self.back_off_s = 1.0  # of a container that exits again and again; 10 for the kubelet
        self._tasks: set[asyncio.Task[None]] = set()
        self._logs = LogServer(self.container_log, network.address, folder)
        self._namespace = ""

    async def start(self, namespace: str) -> None:
        """`namespace`: whose pods it runs."""
        self._namespace = namespace
        self._folder.mkdir()
        _write_program(self._folder / "simulator", SIMULATOR.format(python=sys.executable))
        script = REPOSITORY / "tests" / "support" / "stub_vllm.py"
        _write_program(self._folder / "stub", _STUB.format(python=sys.executable, script=script))
        await self._register(await self._logs.start())
        self._begin(self._follow())

    async def stop(self) -> None:
        """Kill its pods; the API learns nothing."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(pod.vanish() for pod in self.pods.values()))
        self.pods.clear()
        await self._logs.stop()

    def pod(self, name: str) -> Pod:
        """The one whose name begins so."""
        return next(pod for pod in self.pods.values() if pod.name.startswith(name))

    # What a test does to it.

    async def evict(self, pod: Pod) -> None:
        """As the kubelet does where memory gets short."""
        await pod.fail("Evicted", "The node was low on resource: memory. ")

    def kill_for_memory(self, pod: Pod, container: str = "") -> None:
        """As the kernel does at the memory limit of a container."""
        killed = pod.container(container)
        killed.kill_reason = "OOMKilled"
        self._begin(killed.stop(0))

    async def lose(self) -> None:
        """It loses its power; the real controllers act on the condition that a silent node gets."""
        await self.stop()
        unknown = {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
        await self._set_ready("Unknown", **unknown)

    # The kubelet.

    async def _register(self, port: int) -> None:
        gpus = {"nvidia.com/gpu": str(self.gpus)} if self.gpus else {}
        labels = {"kubernetes.io/hostname": self.name, **self._labels}
        await self._api.create("/api/v1/nodes", {"metadata": {"name": self.name, "labels": labels}})
        status: Json = {
            "capacity": _ROOM | gpus,
            "allocatable": _ROOM | gpus,
            "addresses": [{"type": "InternalIP", "address": self._network.address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        await self._api.patch(f"/api/v1/nodes/{self.name}/status", {"status": status})
        await self._set_ready("True", reason="KubeletReady", message="kubelet is posting ready status")

    async def _set_ready(self, status: str, **why: str) -> None:
        at = now()
        ready = {"type": "Ready", "status": status, "lastHeartbeatTime": at, "lastTransitionTime": at, **why}
        await self._api.patch(f"/api/v1/nodes/{self.name}/status", {"status": {"conditions": [ready]}})

    async def _follow(self) -> None:
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        async for objects in self._api.states(path):
            mine = {uid: item for uid, item in objects.items() if item["spec"].get("nodeName") == self.name}
            for uid, document in mine.items():
                self._reconcile(uid, document)
            for uid in self.pods.keys() - mine.keys():  # deleted by force
                self._begin(self.pods.pop(uid).vanish())

    def _reconcile(self, uid: str, document: Json) -> None:
        pod = self.pods.get(uid)
        deleted = "deletionTimestamp" in document["metadata"]
        if pod is None and not deleted and document["status"].get("phase") not in {"Failed", "Succeeded"}:
            folder = self._folder / uid
            name = document["spec"]["containers"][0]["image"].partition("@")[0]
            image = "stub" if name.startswith("stub") else "simulator"
            path = f"{self._folder / image}:{_SYSTEM_PATH}"
            image_env = {**_IMAGE_ENV, "PATH": path, **self.image_env.get(name, {})}
            pod = Pod(
                document,
                api=self._api,
                network=self._network,
                folder=folder,
                image_env=image_env,
                back_off_s=self.back_off_s,
            )
            self.pods[uid] = pod
            pod.start()
        elif deleted and pod is not None and not pod.terminating:
            self._begin(pod.delete(document["metadata"]["deletionGracePeriodSeconds"]))
        elif deleted and pod is None:
            self._begin(self._confirm(document))

    async def _confirm(self, document: Json) -> None:
        """The deletion of a pod that does not run here, such as one that failed."""
        name, uid = document["metadata"]["name"], document["metadata"]["uid"]
        options: Json = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        await self._api.delete(f"/api/v1/namespaces/{self._namespace}/pods/{name}", options)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def container_log(self, pod: str, container: str, *, previous: bool) -> bytes:
        """Raises LookupError with the kubelet's words."""
        owner = next((candidate for candidate in self.pods.values() if candidate.name == pod), None)
        if owner is None:
            raise LookupError(f'pod "{pod}" not found')
        target = owner.container(container)
        if previous and target.last_log is None:
            raise LookupError(f'previous terminated container "{container}" in pod "{pod}" not found')
        log = target.last_log if previous else target.log
        if log is None:
            why = target.state["waiting"]["reason"]
            why = "trying and failing to pull image" if "ImagePull" in why else why
            raise LookupError(f'container "{container}" in pod "{pod}" is waiting to start: {why}')
        return log.read_bytes()


def _write_program(folder: Path, vllm: str) -> None:
    """A folder for PATH with a `vllm`."""
    folder.mkdir()
    program = folder / "vllm"
    program.write_text(vllm)
    program.chmod(0o755)
