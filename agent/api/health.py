"""Answers for the probes of an orchestrator, on an address of their own: plain HTTP without tokens or data.

`/healthz` says whether to restart the process, `/readyz` whether recovery is done. While the daemon waits for
another one, or for what it asks at its start, it is healthy and not ready. Neither depends on
vLLM or on any other program: a restart would not repair these.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from flettner.agent.api.server import serve_plain
from flettner.primitives.address import Address


class DaemonProgress(Protocol):
    def ready(self) -> bool: ...

    def stuck(self) -> bool: ...


@dataclass(slots=True)
class HealthProbes:
    """`daemon`: None until it is built; it may wait for another daemon to end."""

    daemon: DaemonProgress | None = None

    @asynccontextmanager
    async def listening(self, address: Address | None) -> AsyncIterator[None]:
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
        return _answer("" if self._is_stuck() else "ok", "stuck")

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self.daemon is not None and self.daemon.ready()
        return _answer("ready" if ready else "", "stuck" if self._is_stuck() else "waiting")

    def _is_stuck(self) -> bool:
        return self.daemon is not None and self.daemon.stuck()


def _answer(text: str, otherwise: str) -> web.Response:
    if text:
        return web.Response(text=f"{text}\n")
    return web.Response(status=503, text=f"{otherwise}: see the daemon's log\n")
