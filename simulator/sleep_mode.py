"""vLLM's sleep mode: its routes, and a gate that holds requests while the server sleeps."""

import asyncio
import logging
import os
from collections.abc import Mapping

from aiohttp import web

from flettner.simulator.faults import Faults
from flettner.vllm_facts.dev_routes import DEV_MODE

_log = logging.getLogger("vllm")
_MEMORY = "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62"


class SleepMode:
    def __init__(self, faults: Faults) -> None:
        self.awake = asyncio.Event()
        self.awake.set()
        self._faults = faults

    def routes(self, env: Mapping[str, str]) -> list[web.RouteDef]:
        """Those of development mode, if this environment enables it."""
        if env.get(DEV_MODE) != "1":
            return []
        return [
            web.post("/sleep", self._sleep),
            web.post("/wake_up", self._wake),
            web.get("/is_sleeping", self._is_sleeping),
        ]

    async def _sleep(self, request: web.Request) -> web.Response:
        if self._faults.sleep_refused:
            return web.Response(status=500, text="Internal Server Error")
        self.awake.clear()
        if self._faults.die_asleep is not None:
            asyncio.get_running_loop().call_later(self._faults.die_asleep, os._exit, 1)
        level = int(request.query.get("level", "1"))
        return web.json_response({"status": "sleeping", "level": level})

    async def _wake(self, _request: web.Request) -> web.Response:
        if self._faults.wake_fails and not self.awake.is_set():
            _log.error(_MEMORY, extra={"role": "EngineCore", "plain": False})
            return web.Response(status=500, text="Internal Server Error")
        self.awake.set()
        return web.json_response({"status": "awake", "tags": None})

    async def _is_sleeping(self, _request: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": not self.awake.is_set()})
