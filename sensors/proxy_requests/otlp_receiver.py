"""Receives access logs in the protocol of OpenTelemetry (OTLP, gRPC), shared by the sensors of one process.

Envoy sends them once a second, or each 16 KiB, and drops records that it cannot send: see
`flettner.agent.observe.aggregator` for what was lost.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from flettner.sensors.proxy_requests.gateway_records import Attributes

_SERVICE = "opentelemetry.proto.collector.logs.v1.LogsService"
_MOST_CALLS = 64  # at once; each has at most 4 MiB, the limit of gRPC
_OPEN: dict[str, "OtlpReceiver"] = {}
"""By address. A process runs a sensor for each target, and an address has one listener."""


class RecordInbox(Protocol):
    """The records of one target."""

    def receive(self, attributes: Attributes) -> None:
        """Keep a record if it is the target's."""
        ...


@asynccontextmanager
async def subscribed_to_otlp(listen: str, target: str, inbox: RecordInbox) -> AsyncIterator[None]:
    """Receive all records that arrive; the first sensor opens the address, the last sensor closes it.

    Raises OSError if it cannot be opened.
    """
    shared = _OPEN.get(listen) or _OPEN.setdefault(listen, OtlpReceiver(listen))
    shared.inboxes[target] = inbox
    try:
        await asyncio.shield(shared.opening)
        yield
    finally:
        del shared.inboxes[target]
        if not shared.inboxes:
            del _OPEN[listen]
            await shared.close()


class OtlpReceiver:
    """Gives each record to every inbox."""

    def __init__(self, listen: str) -> None:
        self.inboxes: dict[str, RecordInbox] = {}
        self._server: Any = None
        self.opening = asyncio.create_task(self._open(listen), name=f"records at {listen}")
        """Raises OSError."""

    async def _open(self, listen: str) -> None:
        try:
            import grpc.aio  # noqa: PLC0415 - an optional extra, which takes 30 MB
            from opentelemetry.proto.collector.logs.v1 import logs_service_pb2  # noqa: PLC0415
        except ImportError as error:
            raise OSError(f"{error}: install flettner[gateway]") from error

        async def export(request: Any, _: object) -> Any:  # noqa: ANN401 - grpcio has no types
            self._receive(request)
            return logs_service_pb2.ExportLogsServiceResponse()

        call = grpc.unary_unary_rpc_method_handler(
            export,
            request_deserializer=logs_service_pb2.ExportLogsServiceRequest.FromString,
            response_serializer=logs_service_pb2.ExportLogsServiceResponse.SerializeToString,
        )
        options = [("grpc.so_reuseport", 0)]  # two daemons would each get a part of the records
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MOST_CALLS)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Export": call}),))
        try:
            server.add_insecure_port(listen)
        except RuntimeError as error:
            raise OSError(str(error)) from error
        self._server = server
        await server.start()

    async def close(self) -> None:
        self.opening.cancel()
        await asyncio.wait({self.opening})
        if self._server is not None:
            await self._server.stop(grace=None)

    def _receive(self, request: Any) -> None:  # noqa: ANN401
        for resource in request.resource_logs:
            for scope in resource.scope_logs:
                for record in scope.log_records:
                    attributes = {
                        attribute.key: attribute.value.string_value for attribute in record.attributes
                    }
                    for inbox in self.inboxes.values():
                        inbox.receive(attributes)
