"""The HTTP side of the simulated server: vLLM's endpoints on top of the engine."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from flettner.simulator.completions import CompletionKind, CompletionRefusal, Reply, fit, parse_request
from flettner.simulator.engine import SimulatedEngine, TokenStream
from flettner.simulator.faults import Faults
from flettner.simulator.flags import Flags
from flettner.simulator.text import draws
from flettner.vllm_facts.closed_routes import DEV_MODE

_log = logging.getLogger("vllm")
_LORA = "Call to add_lora method failed: LoRA is not supported by this kernel."
_MEMORY = "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62"


class SleepMode:
    def __init__(self, faults: Faults) -> None:
        self.awake = asyncio.Event()
        self.awake.set()
        self._faults = faults

    def routes(self, env: Mapping[str, str]) -> list[web.RouteDef]:
        """Return the routes of development mode, if this environment enables it."""
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


class RuntimeAdapters:
    """LoRA adapters that clients load while the server runs; `names`: of the model itself.

    One whose path is missing cannot be loaded, as in vLLM.
    """

    def __init__(self, names: tuple[str, ...], faults: Faults) -> None:
        self._names = names
        self._faults = faults
        self._paths: dict[str, str] = {}

    @property
    def served(self) -> tuple[str, ...]:
        return self._names if self._faults.adapter_gone else (*self._names, *self._paths)

    def cards(self) -> list[dict[str, object]]:
        return [{"id": name, "root": path, "parent": self._names[0]} for name, path in self._paths.items()]

    def routes(self, env: Mapping[str, str]) -> list[web.RouteDef]:
        """Return the routes of vLLM, where this environment enables them."""
        if env.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "").lower() not in {"1", "true"}:
            return []
        return [
            web.post("/v1/load_lora_adapter", self._load),
            web.post("/v1/unload_lora_adapter", self._unload),
        ]

    async def _load(self, request: web.Request) -> web.Response:
        if self._faults.adapter_refused:
            raise CompletionRefusal(500, _LORA, kind="InternalServerError")
        body = await request.json()
        name, path = str(body["lora_name"]), str(body["lora_path"])
        if name in self._paths and not body.get("load_inplace"):
            raise CompletionRefusal(400, f"The lora adapter '{name}' has already been loaded.")
        if not await asyncio.to_thread(Path(path).is_dir):
            raise CompletionRefusal(404, f"Loading lora {name} failed: No adapter found for {path}")
        self._paths[name] = path
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        name = str((await request.json())["lora_name"])
        if name not in self._paths:
            raise CompletionRefusal(404, f"The lora adapter '{name}' cannot be found.")
        del self._paths[name]
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")


_BUSY = "The engine is currently busy and cannot accept new requests. Please try again later."
_BACKLOG = "The engine has reached its prefill token backlog limit. Please try again later."
_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."

FrontendHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Frontend:
    """Answers requests and injects the faults that show in answers. `now` returns unix seconds."""

    def __init__(self, flags: Flags, engine: SimulatedEngine, now: Callable[[], float]) -> None:
        self.draining = False
        self._flags = flags
        self._engine = engine
        self._now = now
        self._faults = flags.simulation.faults
        self._luck = draws(flags.seed, "faults")
        self._names = draws(flags.seed, "names", now())
        self._since = int(now())
        self._open = 0
        self.sleep_mode = SleepMode(self._faults)
        self.adapters = RuntimeAdapters(flags.names, self._faults)
        self.idle = asyncio.Event()  # no completion is being answered
        self.idle.set()

    @property
    def open(self) -> int:
        """Number of completions in progress."""
        return self._open

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._count], client_max_size=64 << 20)
        app.add_routes(
            [
                *self.sleep_mode.routes(os.environ),
                *self.adapters.routes(os.environ),
                web.get("/health", self._health),
                web.get("/ping", self._health),
                web.get("/version", self._version),
                web.get("/load", self._load),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
            ]
        )
        return app

    @web.middleware
    async def _count(self, request: web.Request, handler: FrontendHandler) -> web.StreamResponse:
        key = self._flags.api_key
        try:
            if (
                key
                and request.path.startswith("/v1")
                and request.headers.get("Authorization") != f"Bearer {key}"
            ):
                response: web.StreamResponse = web.json_response({"error": "Unauthorized"}, status=401)
            else:
                response = await handler(request)
        except CompletionRefusal as refusal:
            response = web.json_response(refusal.body, status=refusal.status)
        seen = (request.path, request.method, f"{response.status // 100}xx")
        self._engine.metrics.responses[seen] += 1
        return response

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": self._flags.simulation.release.version})

    async def _load(self, _request: web.Request) -> web.Response:
        return web.json_response({"server_load": self._open})

    async def _metrics(self, _request: web.Request) -> web.Response:
        text = self._engine.page(log_stats=self._flags.log_stats)
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(body=text.encode(), headers={"Content-Type": kind})

    async def _models(self, _request: web.Request) -> web.Response:
        about = {
            "object": "model",
            "created": self._since,
            "owned_by": "vllm",
            "root": self._flags.model,
            "parent": None,
            "max_model_len": self._flags.memory.max_model_len,
        }
        return web.json_response(
            {
                "object": "list",
                "data": [
                    *({"id": name, **about} for name in self._flags.names),
                    *({**about, **card} for card in self.adapters.cards()),
                ],
            }
        )

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "completion")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "chat")

    async def _answer(self, request: web.Request, kind: CompletionKind) -> web.StreamResponse:
        self._open += 1
        self.idle.clear()
        try:
            return await self._complete(request, kind)
        finally:
            self._open -= 1
            if not self._open:
                self.idle.set()

    async def _complete(self, request: web.Request, kind: CompletionKind) -> web.StreamResponse:
        self._first_use()
        completion = parse_request(kind, await request.read(), self.adapters.served)
        reply = Reply(
            request=completion,
            name=f"{'cmpl' if kind == 'completion' else 'chatcmpl'}-{self._names.getrandbits(64):016x}",
            created=int(self._now()),
            fingerprint=f"vllm-{self._flags.simulation.release.version}-simulated",
        )
        if self._luck.random() < self._faults.errors:
            raise CompletionRefusal(500, _DEAD, kind="InternalServerError")
        if self.draining or self._luck.random() < self._faults.abort:
            return await _aborted(request, reply)
        cut = self._luck.random() < self._faults.truncate
        self._admit()
        text = self._engine.read(completion.prompt, wrong=self._luck.random() < self._faults.wrong)
        wanted = fit(completion, text.prompt_tokens, self._flags.memory.max_model_len)
        await self.sleep_mode.awake.wait()
        stream = self._engine.submit(text, wanted, ignore_eos=completion.ignore_eos)
        try:
            if completion.stream:
                return await self._stream(request, reply, stream, cut_after=wanted // 2 if cut else None)
            return await self._whole(request, reply, stream, cut=cut)
        finally:
            self._engine.abort(stream)

    def _first_use(self) -> None:
        """Start the clock of the faults with the first completion request."""
        if self._engine.used_at is not None:
            return
        loop = asyncio.get_running_loop()
        self._engine.used_at = loop.time()
        if self._faults.die_after is not None:
            loop.call_later(self._faults.die_after, os._exit, 1)

    def _admit(self) -> None:
        """Admit the request as vLLM does, which sends no Retry-After."""
        most, backlog = self._flags.max_num_queued_reqs, self._flags.max_num_queued_tokens
        if most is not None and self._engine.requests >= most:
            self._engine.metrics.rejected["max_num_queued_reqs"] += 1
            raise CompletionRefusal(503, _BUSY, kind="Service Unavailable")
        if backlog is not None and self._engine.prefill_backlog >= backlog:
            self._engine.metrics.rejected["max_num_queued_tokens"] += 1
            raise CompletionRefusal(503, _BACKLOG, kind="Service Unavailable")

    async def _stream(
        self, request: web.Request, reply: Reply, stream: TokenStream, *, cut_after: int | None
    ) -> web.StreamResponse:
        """Send headers at once, as vLLM; then tokens, `stream_interval` in an event after the first."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        with suppress(ConnectionResetError):  # the client went away; `_complete` takes the request out
            await response.prepare(request)
            pending, count, reason = "", 0, None
            while reason is None:
                token, reason = await stream.token()
                pending += token
                count += bool(token)
                if cut_after is not None and count > cut_after:
                    _hang_up(request)
                    break
                if reason is None and count > 1 and count % self._flags.stream_interval:
                    continue
                opening = reply.opening() if count == 1 else b""
                await response.write(opening + reply.chunk(pending, reason))
                pending = ""
            else:
                await response.write(reply.closing(stream.request.prompt, stream.request.produced))
        return response

    async def _whole(
        self, request: web.Request, reply: Reply, stream: TokenStream, *, cut: bool
    ) -> web.Response:
        tokens: list[str] = []
        reason = None
        while reason is None:
            token, reason = await stream.token()
            tokens.append(token)
        if cut:
            _hang_up(request)
        text, made = "".join(tokens), stream.request
        return web.json_response(reply.whole(text, reason, made.prompt, made.produced))


async def _aborted(request: web.Request, reply: Reply) -> web.StreamResponse:
    """Return 200 without text and with finish_reason abort: vLLM's answer to new requests while it drains."""
    if not reply.request.stream:
        return web.json_response(reply.whole("", "abort", 0, 0))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    with suppress(ConnectionResetError):
        await response.prepare(request)
        await response.write(reply.opening() + reply.chunk("", "abort") + reply.closing(0, 0))
    return response


def _hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
