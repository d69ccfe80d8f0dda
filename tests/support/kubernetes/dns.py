"""A stand-in for the cluster's DNS: addresses of Services of the cluster, as CoreDNS answers."""

import asyncio
import socket
import struct
from contextlib import suppress

import aiohttp

from tests.support.kubernetes.api import Api, ApiError

TTL_S = 5
_A, _IN, _NXDOMAIN = 1, 1, 3
_ZONE = ".cluster.local"

Answer = list[str] | None
"""Addresses; None: there is no such name."""


class Dns(asyncio.DatagramProtocol):
    """Listens at `address`:53. Answers from its last knowledge while the API server is away."""

    def __init__(self, api: Api, address: str) -> None:
        self._api, self._address = api, address
        self._known: dict[str, Answer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.DatagramTransport | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: self,
            local_addr=(self._address, 53),
            reuse_port=True,  # one for each namespace; all know all names
        )

    async def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        task = asyncio.create_task(self._reply(data, addr))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, query: bytes, client: tuple[str, int]) -> None:
        name, kind, question = _question(query)
        addresses = await self.resolve(name)
        assert self._transport is not None
        self._transport.sendto(_response(query, question, addresses, wanted=kind == _A), client)

    async def resolve(self, name: str) -> Answer:
        """The ready addresses of `SERVICE.NAMESPACE.svc` with or without `.cluster.local`."""
        service, dot, namespace = (
            name.lower().rstrip(".").removesuffix(_ZONE).removesuffix(".svc").partition(".")
        )
        if not dot or "." in namespace or ".svc" not in name.lower():
            return None
        with suppress(aiohttp.ClientError, TimeoutError):
            self._known[name] = await self._look_up(f"/api/v1/namespaces/{namespace}", service)
        return self._known.get(name)

    async def _look_up(self, place: str, service: str) -> Answer:
        try:
            document = await self._api.get(f"{place}/services/{service}")
            if document["spec"].get("clusterIP") != "None":
                return [document["spec"]["clusterIP"]]
            endpoints = await self._api.get(f"{place}/endpoints/{service}")
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        subsets = endpoints.get("subsets", ())
        return [endpoint["ip"] for subset in subsets for endpoint in subset.get("addresses", ())]


def _question(query: bytes) -> tuple[str, int, bytes]:
    """The name, the type and the bytes of the first question (RFC 1035, section 4.1.2)."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode())
        at += 1 + length
    kind = struct.unpack_from("!H", query, at + 1)[0]
    return ".".join(labels), kind, query[12 : at + 5]


def _response(query: bytes, question: bytes, addresses: Answer, *, wanted: bool) -> bytes:
    """Authoritative; an empty one for a type that the name does not have."""
    listed = (addresses or []) if wanted else []
    flags = 0x8580 | (_NXDOMAIN if addresses is None else 0)
    header = query[:2] + struct.pack("!HHHHH", flags, 1, len(listed), 0, 0)
    record = struct.pack("!HHHIH", 0xC00C, _A, _IN, TTL_S, 4)  # 0xC00C: the name in the question
    return header + question + b"".join(record + socket.inet_aton(address) for address in listed)
