"""The logs of containers over HTTPS: kube-apiserver sends requests for `pods/log` on to the kubelet."""

import ssl
from pathlib import Path
from typing import Protocol

from aiohttp import web

from tests.support.kubernetes import certificates


class ReadLog(Protocol):
    def __call__(self, pod: str, container: str, *, previous: bool) -> bytes:
        """Raises LookupError with a message for the client."""


class LogServer:
    """Answers /containerLogs/NAMESPACE/POD/CONTAINER with `tailLines`, `limitBytes` and `previous`."""

    def __init__(self, read: ReadLog, address: str, folder: Path) -> None:
        self._read, self._address, self._folder = read, address, folder
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """The port."""
        certificate, key = certificates.serving(self._folder, "kubelet", self._address)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate, key)
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._log)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._address, 0, ssl_context=tls).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _log(self, request: web.Request) -> web.Response:
        asked = request.query
        where = request.match_info
        try:
            log = self._read(where["pod"], where["container"], previous=asked.get("previous") == "true")
        except LookupError as error:
            return web.Response(status=400, text=str(error.args[0]))
        if "tailLines" in asked:
            lines = log.splitlines(keepends=True)
            log = b"".join(lines[max(0, len(lines) - int(asked["tailLines"])) :])
        return web.Response(body=log[: int(asked.get("limitBytes", len(log)))], content_type="text/plain")
