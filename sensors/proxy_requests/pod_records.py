"""Follows the records of all Envoy pods of a Deployment, shared by the sensors of one process.

Each pod numbers its records and keeps the last of them, so that a broken connection loses no record. Records
that are lost nevertheless, with a killed pod for instance, are reported to every inbox, because some of their
requests may have failed.
"""

import asyncio
import reprlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import aiohttp
import msgpack
from tenacity import AsyncRetrying, retry_if_result, wait_fixed

from flettner.agent.domain.errors import ActError, SensorError
from flettner.agent.retrying import retry
from flettner.clients.envoy_records import pods
from flettner.clients.envoy_records.record import MESSAGE_BYTES
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.deployment_pods import DeploymentPods, FoundPod
from flettner.primitives.address import Address
from flettner.sensors.proxy_requests.record_socket import Inbox, add_message

LOOK_S = 2.0  # between two looks for new pods
RETRY_S = 1.0
SILENT_S = 5.0  # without a sign of life, which a pod gives each second

Key = tuple[KubernetesClient, str]
"""The client, and the name of the Deployment."""

_OPEN: dict[Key, "PodRecords"] = {}


class PodInbox(Inbox, Protocol):
    def lose(self, why: str) -> None:
        """Records are lost."""
        ...


@asynccontextmanager
async def subscribed_to_pods(key: Key, target: str, inbox: PodInbox) -> AsyncIterator["PodRecords"]:
    """Receive the target's records; the first sensor starts to follow the pods, the last sensor stops."""
    shared = _OPEN.get(key) or _OPEN.setdefault(key, PodRecords(key))
    shared.inboxes[target] = inbox
    try:
        yield shared
    finally:
        del shared.inboxes[target]
        if not shared.inboxes:
            del _OPEN[key]
            shared.following.cancel()
            await asyncio.wait({shared.following})


class PodRecords:
    """Gives each record to the inbox of its target."""

    def __init__(self, key: Key) -> None:
        client, deployment = key
        self.inboxes: dict[str, PodInbox] = {}
        self._pods = DeploymentPods(client=client, deployment=deployment)
        self._streams: dict[str, _Stream] = {}  # by the pod's name
        self._began_s = asyncio.get_running_loop().time()
        self._has_pods = False  # there was a pod once
        self._why = ""  # the pods cannot be listed
        self.following = asyncio.create_task(self._follow(), name="records of pods")

    def state(self) -> tuple[bool, str] | None:
        """Whether the records of all ready pods arrive, and why not; None before the first pod."""
        if self.following.done():
            self.following.result()  # it ends by an error only
        broken = [stream for stream in self._streams.values() if stream.pod.ready and stream.why]
        if broken:
            return False, "; ".join(f"{stream.pod.name}: {stream.why}" for stream in broken)
        if self._why:
            return False, self._why
        if any(stream.connected for stream in self._streams.values()):
            return True, "every Envoy pod is connected"
        return (False, "no Envoy pod is connected") if self._has_pods else None

    def since_s(self) -> float:
        """Seconds since this process counts requests; requests of a new pod count from its first request."""
        return asyncio.get_running_loop().time() - self._began_s

    def add(self, message: object) -> None:
        """Raises SensorError for a message of another format."""
        add_message(self.inboxes, message)

    def lose(self, why: str) -> None:
        for inbox in self.inboxes.values():
            inbox.lose(why)

    def count_unreadable(self, error: Exception) -> None:
        for inbox in self.inboxes.values():
            inbox.count_unreadable(error)

    async def _follow(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENT_S, sock_read=SILENT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as tasks:
            while True:
                try:
                    pods = {pod.name: pod for pod in await self._pods.find(stale=True)}
                    self._why = ""
                except ActError as error:
                    self._why = error.why
                else:
                    for name in self._streams.keys() - pods.keys():
                        self._streams.pop(name).drop()
                    for name, pod in pods.items():
                        if name not in self._streams:
                            stream = self._streams[name] = _Stream(self, pod, session)
                            stream.task = tasks.create_task(stream.run(), name=f"records of {name}")
                            self._has_pods = True
                        self._streams[name].pod = pod
                await asyncio.sleep(LOOK_S)


class _Stream:
    """The connection to a pod. `why`: the reason why it is broken."""

    def __init__(self, shared: PodRecords, pod: FoundPod, session: aiohttp.ClientSession) -> None:
        self._shared, self.pod, self._session = shared, pod, session
        self.task: asyncio.Task[None] | None = None
        self.connected = False
        self.why = ""
        self._boot, self._after = "", 0
        self._ended = False  # the pod has said that all is sent

    def drop(self) -> None:
        """The pod is gone."""
        if self.task is not None:
            self.task.cancel()
        if self.connected and not self._ended:
            self._shared.lose(f"{self.pod.name} ended before its last records were read")

    async def run(self) -> None:
        """Connect, and connect again each time that the connection ends, until cancelled."""
        connecting = AsyncRetrying(retry=retry_if_result(lambda _: True), wait=wait_fixed(RETRY_S))
        await retry(connecting, self._follow)

    async def _follow(self) -> None:
        try:
            await self._read()
            why = "the connection was closed"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = str(error) or "no answer"
        except (SensorError, msgpack.UnpackException, ValueError, TypeError) as error:
            self._shared.count_unreadable(error)
            why = f"unreadable: {error}"
        if self.connected and not self._ended:
            self._shared.lose(f"{self.pod.name}: {why}")
        self.connected, self.why = False, "" if self._ended else why

    async def _read(self) -> None:
        url = f"http://{Address(self.pod.ip, pods.PORT)}{pods.RECORDS_PATH}"
        since_s = f"{self._shared.since_s():.3f}"
        query = {pods.BOOT: self._boot, pods.AFTER: str(self._after), pods.SINCE_S: since_s}
        unpacker = msgpack.Unpacker(
            max_buffer_size=MESSAGE_BYTES, strict_map_key=False, unicode_errors="replace"
        )
        async with self._session.get(url, params=query) as answer:
            answer.raise_for_status()
            async for data in answer.content.iter_any():
                unpacker.feed(data)
                for item in unpacker:
                    self._take(item)

    def _take(self, item: object) -> None:
        match item:
            case None:
                pass
            case [int() as number, message]:
                self._after = number
                self._shared.add(message)
            case dict():
                self._note(item)
            case _:
                raise SensorError(f"not an item of a pod's records: {reprlib.repr(item)}")

    def _note(self, item: dict[object, object]) -> None:
        if pods.BOOT in item:
            self._boot, self._after = str(item[pods.BOOT]), int(str(item[pods.AFTER]))
            self.connected, self.why, self._ended = True, "", False
        if item.get(pods.LOST) is True:
            self._shared.lose(f"{self.pod.name} had no room for its records")
        if item.get(pods.END) is True:
            self._ended = True
