"""Answers for the probes of an orchestrator, on an address of their own: plain HTTP without tokens or data.

`/healthz` says whether to restart the process, `/readyz` whether recovery is done. Neither depends on
vLLM or on any other program: a restart would not repair these.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from agent.api.server import serve_plain


class DaemonProgress(Protocol):
    def ready(self) -> bool: ...

    def stuck(self) -> bool: ...


@dataclass(slots=True)
class Health:
    """`daemon`: None until it is built; it may wait for another daemon to end."""

    daemon: DaemonProgress | None = None

    @asynccontextmanager
    async def listening(self, address: str | None) -> AsyncIterator[None]:
        """Answer at `address` meanwhile; None: nowhere. Raises ConfigError if it cannot be used."""
        if address is None:
            yield
            return
        app = web.Application()
        app.add_routes([web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)])
        runner = await serve_plain(app, address, key="health")
        try:
            yield
        finally:
            await runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer("ok" if self.daemon is None or not self.daemon.stuck() else "")

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer("ready" if self.daemon is not None and self.daemon.ready() else "")


def _answer(text: str) -> web.Response:
    return web.Response(text=f"{text}\n") if text else web.Response(status=503, text="see the daemon's log\n")
