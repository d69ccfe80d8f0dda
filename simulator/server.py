"""`python -m flettner.simulator.server`: starts, serves and stops like a vLLM server, without a model.

Exit codes are vLLM's: 2 for an unknown flag, 1 for a failed start, 0 after SIGTERM.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from aiohttp import web

from flettner.simulator.data_parallel import DataParallelEngine
from flettner.simulator.drafts import read_drafts
from flettner.simulator.engine import SimulatedEngine
from flettner.simulator.flags import Flags, InvalidFlagError, parse
from flettner.simulator.frontend import Frontend
from flettner.simulator.kv_cache import KvCache
from flettner.simulator.live_limits import open_control
from flettner.simulator.memory import StartError, kv_blocks
from flettner.simulator.metrics import CacheFacts, Metrics
from flettner.simulator.pace import Pace
from flettner.simulator.release import read_release
from flettner.simulator.scheduler import Scheduler
from flettner.simulator.step_time import StepTime
from flettner.simulator.text import draws

_Engine = TypeVar("_Engine", bound=SimulatedEngine)
VirtualClock = Callable[[], float]
"""Unix seconds."""

_log = logging.getLogger("vllm")


def build_server(flags: Flags, now: VirtualClock) -> tuple[SimulatedEngine, Frontend]:
    """Return the parts of the server, not started. Raises StartError if the model does not fit."""
    if flags.data_parallel_size == 1:
        single = build_engine(SimulatedEngine, flags, now)
        return single, Frontend(flags, single, now)
    first = build_engine(DataParallelEngine, flags, now)
    first.others = [
        build_engine(SimulatedEngine, flags, now, rank) for rank in range(1, flags.data_parallel_size)
    ]
    return first, Frontend(flags, first, now)


def build_engine(kind: type[_Engine], flags: Flags, now: VirtualClock, rank: int = 0) -> _Engine:
    """Return one of the data-parallel engines, each with its own noise. Raises StartError."""
    own = (rank,) if rank else ()
    simulation, memory = flags.simulation, flags.memory
    blocks = kv_blocks(simulation.hardware, memory, simulation.oom_above)
    cache = KvCache(blocks, block_size=memory.block_size, caching=flags.enable_prefix_caching)
    drafts = read_drafts(flags.speculative_config, simulation.acceptance, draws(flags.seed, "drafts", *own))
    law = StepTime(
        hardware=simulation.hardware,
        eager=flags.enforce_eager,
        largest_graph=memory.largest_graph,
        draft_cost=drafts.cost if drafts else 0.0,
    )
    pace = Pace(
        law.split,
        draws(flags.seed, "jitter", *own),
        speed=simulation.speed,
        jitter=simulation.jitter,
        faults=simulation.faults,
        hiccups=simulation.hiccups,
    )
    facts = CacheFacts(
        blocks=blocks,
        engines=flags.data_parallel_size,
        block_size=memory.block_size,
        max_model_len=memory.max_model_len,
        gpu_memory_utilization=memory.gpu_memory_utilization,
        cache_dtype=flags.kv_cache_dtype,
        prefix_caching=flags.enable_prefix_caching,
        blocks_override=memory.num_gpu_blocks_override,
        memory_bytes=memory.kv_cache_memory_bytes,
        rank=rank,
    )
    return kind(
        Scheduler(flags.limits, cache, leak=int(simulation.faults.leak), drafts=drafts),
        pace,
        Metrics(flags.names[0], facts, now(), without=simulation.release.without_metrics),
        seed=flags.seed,
        log_step=_say if flags.log_iterations else None,
        rank=rank,
    )


async def serve(flags: Flags, now: VirtualClock) -> int:
    """Start, serve until SIGTERM or SIGINT, stop; return the exit code."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with _bound(flags) as listener:
        _say("non-default args: %s", dict(flags.given))
        _say("Using max model len %d", flags.memory.max_model_len)
        _say(
            "Initializing a V1 LLM engine (v%s) with config: model='%s'",
            flags.simulation.release.version,
            flags.model,
            role="EngineCore",
        )
        if await _within(stop, flags.simulation.start_s / 2):
            return 0
        if flags.simulation.faults.exit:
            raise StartError("the simulated fault of this setting")
        engine, frontend = build_server(flags, now)
        if (knobs := open_control(flags, os.environ)) is not None:
            engine.new_limits = knobs.take
        _say_memory(flags, engine.scheduler.cache)
        waits = None if flags.simulation.faults.never_ready else flags.simulation.start_s / 2
        if await _within(stop, waits):
            return 0
        await _answer(flags, engine, frontend, listener, stop)
    return 0


async def _answer(
    flags: Flags, engine: SimulatedEngine, frontend: Frontend, listener: socket.socket, stop: asyncio.Event
) -> None:
    runner = web.AppRunner(
        frontend.app(),
        handler_cancellation=True,  # a client that leaves takes its request out of the scheduler
        shutdown_timeout=0.01,  # aiohttp takes 0 for no limit
        access_log=None,
    )
    await runner.setup()
    try:
        async with asyncio.TaskGroup() as tasks:
            steps = tasks.create_task(engine.run(), name="engine")
            await web.SockSite(runner, listener, backlog=2048).start()
            host, port = listener.getsockname()[:2]
            _say("Starting vLLM server on http://%s:%d", host, port)
            _say("Application startup complete.", plain=True)
            await stop.wait()
            mode = "drain" if flags.shutdown_timeout else "abort"
            _say("[shutdown] API server: shutdown triggered")
            _say(
                "[shutdown] API server: stopping engine client mode=%s timeout=%ds",
                mode,
                flags.shutdown_timeout,
            )
            await _drain(frontend, flags.shutdown_timeout)
            steps.cancel()
    finally:
        await runner.cleanup()  # cuts what is still being answered


async def _drain(frontend: Frontend, seconds: float) -> None:
    """Answer new requests with `abort`; give running requests `seconds` to end."""
    frontend.draining = True
    if not seconds:
        return
    _say("[shutdown] EngineCore: draining in-flight requests count=%d", frontend.open, role="EngineCore")
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await frontend.idle.wait()


async def _within(stop: asyncio.Event, seconds: float | None) -> bool:
    """Wait for this number of seconds (None: forever) or until the stop; True if stopped."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
    return stop.is_set()


def _bound(flags: Flags) -> socket.socket:
    """Bind the port at once and refuse connections until the model is loaded, as vLLM does."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((flags.host, flags.port))
    return listener


def _say(message: str, *values: object, role: str = "APIServer", plain: bool = False) -> None:
    _log.info(message, *values, extra={"role": role, "plain": plain})


def _say_memory(flags: Flags, cache: KvCache) -> None:
    tokens, longest = cache.blocks * cache.block_size, flags.memory.max_model_len
    message = "GPU KV cache size: %s tokens, Maximum concurrency for %s tokens per request: %.2fx"
    _say(message, f"{tokens:,}", f"{longest:,}", tokens / longest, role="EngineCore")


class _Lines(logging.Formatter):
    """vLLM's log format, and uvicorn's for its lines."""

    def format(self, record: logging.LogRecord) -> str:
        if getattr(record, "plain", False):
            return f"{record.levelname}:     {record.getMessage()}"
        at = self.formatTime(record, "%m-%d %H:%M:%S")
        role = getattr(record, "role", "APIServer")
        return f"({role} pid={os.getpid()}) {record.levelname} {at} [server.py:1] {record.getMessage()}"


def main(argv: Sequence[str] | None = None, now: VirtualClock = time.time) -> int:  # noqa: TID251 - where the clock enters
    try:
        flags = parse(sys.argv[1:] if argv is None else argv, read_release(os.environ))
    except InvalidFlagError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Lines())
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        return asyncio.run(serve(flags, now))
    except (StartError, OSError) as error:
        kind = "OSError" if isinstance(error, OSError) else "RuntimeError"
        sys.stderr.write(
            f"EngineCore failed to start.\n{kind}: {error}\nRuntimeError: Engine core initialization failed. "
            "See root cause above. Failed core proc(s): {}\n"
        )
        return 1


if __name__ == "__main__":
    sys.exit(main())
