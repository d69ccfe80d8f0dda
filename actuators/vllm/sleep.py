"""Let a vLLM server sleep instead of ending it: whether it can, and until its GPU memory is free.

It runs on with its weights in host memory, and wakes in seconds. What fails here makes the engine end it, as
without sleep mode.

vLLM 0.32, vllm/entrypoints/serve/dev/sleep/api_router.py: the routes exist with VLLM_SERVER_DEV_MODE=1.
Without `--enable-sleep-mode`, and on a CPU, `/sleep` answers 200 and frees nothing: what is free has to be
measured.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from flettner.actuators.host.memory import Host, spare_memory
from flettner.actuators.vllm.gpu_demand import utilization
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.agent.domain.errors import ActError
from flettner.primitives.bounded import parse_json, read_body
from flettner.primitives.waiting import poll_until
from flettner.vllm_facts.closed_routes import DEV_MODE
from flettner.vllm_facts.values import Setting

FREE_WITHIN_S = 30.0  # the driver frees memory some time after the call has returned

_WEIGHTS = re.compile(rb"Model loading took ([0-9.]+) GiB")
_POLL_S = 1.0
_GIB = 1024**3
FLAG = "enable_sleep_mode"
OFFLOAD = 1  # level: weights to host memory, the KV cache is dropped
_WITHIN_S = 120.0  # 200 GB at 4 GB/s, a slow transfer to host memory that is not pinned yet, take 50 s
_MOST_BYTES = 65_536
_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepVerdict:
    """Whether the server can sleep. `why`: a clause with the numbers in it."""

    fits: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMemory:
    """Host memory of a server, in bytes. `room`: the rest of its own limit; None if it has no limit."""

    room: float | None
    next: float  # the need of one more server like it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleepable:
    """A running server, and how its engine measures it.

    `host`: measures the host, with the GPUs of this server alone; without them if one of them is unknown.
    `memory`: None if it is not known. `start_log`: the lines of its start; () if they cannot be read.
    """

    address: str
    setting: Setting
    env: Mapping[str, str]
    host: Callable[[], Awaitable[Host]]
    memory: Callable[[], Awaitable[ServerMemory | None]]
    start_log: Callable[[], Awaitable[Sequence[bytes]]]


async def judge(server: Sleepable) -> SleepVerdict:
    """Whether host memory has room for the weights beside one more server."""
    if why := why_unavailable(server.setting, server.env):
        return SleepVerdict(fits=False, why=why)
    host = await server.host()
    if not host.gpus:
        return SleepVerdict(fits=False, why=f"the memory of its GPUs is not known: {host.why}")
    return room_for_weights(await _weights(server, host), await server.memory(), host)


async def put_to_sleep(
    server: Sleepable,
    prepare: Callable[[], Awaitable[None]],
    *,
    asleep: bool,
    free_within_s: float = FREE_WITHIN_S,
) -> str:
    """Return how much memory is free then. Raises ActError if it does not sleep or frees too little.

    `asleep`: a daemon that died has done this, so its weights are in host memory. `prepare`: called before.
    """
    room = ""
    if not asleep:
        verdict = await judge(server)
        if not verdict.fits:
            raise ActError(verdict.why)
        room = f"; {verdict.why}"
    busy = await OpenAiProbe(address=server.address).busy()
    if busy != 0:
        raise ActError("its open requests are unknown" if busy is None else f"{busy} requests are open")
    await prepare()
    await SleepMode(server.address).sleep()
    return f"{await _wait_for_memory(server, free_within_s)}{room}"


async def _weights(server: Sleepable, host: Host) -> float:
    """Return the bytes that vLLM logged for each GPU; else all that its GPUs hold, which is more."""
    lines = await server.start_log()
    logged = [float(match[1]) for line in lines if (match := _WEIGHTS.search(line))]
    gpus = host.gpus or ()
    if logged:
        return max(logged) * len(gpus) * _GIB
    return sum((gpu.total_mib or 0) - (gpu.free_mib or 0) for gpu in gpus) * 1024**2


async def _wait_for_memory(server: Sleepable, within_s: float) -> str:
    """Wait for the share of each GPU that a server like it takes; vLLM refuses to start with less."""
    share = utilization(server.setting)
    free: list[tuple[float, float]] = []

    async def is_free() -> bool:
        nonlocal free
        gpus = (await server.host()).gpus or ()
        free = [(gpu.free_mib or 0.0, gpu.total_mib or 0.0) for gpu in gpus]
        return bool(free) and all(left >= share * total for left, total in free)

    if await poll_until(is_free, _POLL_S, within_s):
        return f"{min(left for left, _ in free) / 1024:.1f} GiB of GPU memory are free"
    shown = ", ".join(f"{left / 1024:.1f} of {total / 1024:.1f} GiB" for left, total in free)
    raise ActError(f"asleep it leaves {shown or 'an unknown part'} free, {share:g} are needed")


def room_for_weights(weights: float, memory: ServerMemory | None, host: Host) -> SleepVerdict:
    """Judge whether host memory has room for `weights` (bytes) beside one more server."""
    size = f"its {weights / _GIB:.1f} GiB of weights"
    if memory is None or host.memory is None:
        return SleepVerdict(fits=False, why="the free memory of the host is not known")
    if memory.room is not None and memory.room < weights:
        why = f"{size} exceed the {memory.room / _GIB:.1f} GiB that its memory limit leaves"
        return SleepVerdict(fits=False, why=why)
    spare = spare_memory(host)
    numbers = f"{spare / _GIB:.1f} GiB to spare, {memory.next / _GIB:.1f} GiB of them for the new server"
    if weights + memory.next > spare:
        return SleepVerdict(fits=False, why=f"{size} do not fit into host memory: {numbers}")
    return SleepVerdict(fits=True, why=f"{size} are in host memory, which has {numbers}")


def why_unavailable(setting: Setting, env: Mapping[str, str]) -> str:
    """Return why a server of this command has no sleep mode, with the fix; empty if it has."""
    missing = []
    if setting.get(FLAG) is not True:
        missing.append("--enable-sleep-mode")
    if env.get(DEV_MODE) != "1":
        missing.append(f"{DEV_MODE}=1")
    return f"it was started without {' and '.join(missing)}" if missing else ""


@dataclass(frozen=True, slots=True)
class SleepMode:
    """Each call is idempotent, and raises ActError if the server refuses or does not answer."""

    address: str

    async def sleep(self) -> None:
        """Put a server without open requests to sleep: they would be aborted."""
        await self._call("POST", f"/sleep?level={OFFLOAD}")
        if not await self._is_sleeping():
            raise ActError(f"{self.address}/sleep: it answers 200 and does not sleep")

    async def wake(self) -> None:
        await self._call("POST", "/wake_up")
        if await self._is_sleeping():
            raise ActError(f"{self.address}/wake_up: it answers 200 and sleeps on")

    async def _is_sleeping(self) -> bool:
        try:
            body = parse_json(await self._call("GET", "/is_sleeping"))
        except ValueError as error:
            raise ActError(f"{self.address}/is_sleeping: no JSON") from error
        return isinstance(body, dict) and body.get("is_sleeping") is True

    async def _call(self, method: str, path: str) -> bytes:
        asked = f"{self.address}{path}"
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_WITHIN_S)) as session,
                session.request(method, f"http://{asked}", allow_redirects=False) as answer,
            ):
                body = await read_body(answer, _MOST_BYTES)
        except TimeoutError as error:
            raise ActError(f"{asked}: no answer within {_WITHIN_S:g} s") from error
        except (OSError, aiohttp.ClientError, ValueError) as error:
            raise ActError(f"{asked}: no answer: {error!r:.200}") from error
        if answer.status != 200:  # noqa: PLR2004
            raise ActError(f"{asked}: {answer.status} {body.decode(errors='replace')[:_SHOWN]}")
        return body
