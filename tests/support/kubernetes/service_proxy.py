"""A stand-in for kube-proxy: a port of this host whose connections go to the ready pods of a Service."""

import asyncio
import itertools
from contextlib import suppress

from tests.support.kubernetes.namespace import Namespace


class ServiceProxy:
    """Gives each new connection to the next ready address, as last known while the API server is away."""

    def __init__(self, here: Namespace, service: str, port: int, pod_port: int) -> None:
        self._here, self._service, self._port, self._pod_port = here, service, port, pod_port
        self.addresses: list[str] = []
        self._turns = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._keep(asyncio.create_task(self._follow()))
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self._port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self) -> None:
        async for objects in self._here.api.states(self._here.path("endpoints")):
            endpoints = next(
                (document for document in objects.values() if document["metadata"]["name"] == self._service),
                {},
            )
            self.addresses = [
                endpoint["ip"]
                for subset in endpoints.get("subsets", ())
                for endpoint in subset.get("addresses", ())
            ]

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The client is refused where there is no ready pod, or the pod does not accept."""
        addresses = list(self.addresses)
        try:
            if not addresses:
                return
            address = addresses[next(self._turns) % len(addresses)]
            with suppress(OSError):
                from_pod, to_pod = await asyncio.open_connection(address, self._pod_port)
                back = asyncio.create_task(_copy(from_pod, writer))
                self._keep(back)
                await _copy(reader, to_pod)
                await back
        finally:
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the sender closes; then the receiver is told."""
    try:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()
