"""Let a vLLM server sleep instead of ending it: whether it can, and until its GPU memory is free.

It runs on with its weights in host memory. What fails here makes the engine end it, as without sleep mode.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flettner.actuators.host.memory import Host, spare_memory
from flettner.actuators.vllm.gpu_demand import utilization
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.actuators.vllm.sleep_mode import SleepMode, why_unavailable
from flettner.agent.domain.errors import ActError
from flettner.primitives.waiting import poll_until
from flettner.vllm_facts.values import Setting

FREE_WITHIN_S = 30.0  # the driver frees memory some time after the call has returned

_WEIGHTS = re.compile(rb"Model loading took ([0-9.]+) GiB")
_POLL_S = 1.0
_GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepVerdict:
    """Whether the server can sleep. `why`: a clause with the numbers in it."""

    fits: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMemory:
    """Host memory, in bytes. `room`: that its own limit leaves; None: it has none."""

    room: float | None
    next: float  # that one more server like it may take


class Sleepable(Protocol):
    """A running server, as its engine knows it."""

    @property
    def address(self) -> str: ...
    @property
    def setting(self) -> Setting: ...
    @property
    def env(self) -> Mapping[str, str]: ...

    async def measure(self) -> Host:
        """The host, with the GPUs of this server alone; without them if one of them is unknown."""
        ...

    async def memory(self) -> ServerMemory | None:
        """None: not known."""
        ...

    async def start_log(self) -> Sequence[bytes]:
        """The lines of its start; () if they cannot be read."""
        ...


async def judge(one: Sleepable) -> SleepVerdict:
    """Whether host memory has room for the weights beside one more server."""
    if why := why_unavailable(one.setting, one.env):
        return SleepVerdict(fits=False, why=why)
    host = await one.measure()
    if not host.gpus:
        return SleepVerdict(fits=False, why=f"the memory of its GPUs is not known: {host.why}")
    return room_for_weights(await _weights(one, host), await one.memory(), host)


async def put_to_sleep(
    one: Sleepable,
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
        verdict = await judge(one)
        if not verdict.fits:
            raise ActError(verdict.why)
        room = f"; {verdict.why}"
    busy = await OpenAiProbe(address=one.address).busy()
    if busy != 0:
        raise ActError("its open requests are unknown" if busy is None else f"{busy} requests are open")
    await prepare()
    await SleepMode(one.address).sleep()
    return f"{await _wait_for_memory(one, free_within_s)}{room}"


async def _weights(one: Sleepable, host: Host) -> float:
    """Bytes, as vLLM logged them for each GPU; else all that its GPUs hold, which is more."""
    lines = await one.start_log()
    logged = [float(found[1]) for line in lines if (found := _WEIGHTS.search(line))]
    gpus = host.gpus or ()
    if logged:
        return max(logged) * len(gpus) * _GIB
    return sum((gpu.total_mib or 0) - (gpu.free_mib or 0) for gpu in gpus) * 1024**2


async def _wait_for_memory(one: Sleepable, within_s: float) -> str:
    """A server like it takes its share of each whole GPU, and refuses to start if that is not free."""
    share = utilization(one.setting)
    free: list[tuple[float, float]] = []

    async def is_free() -> bool:
        nonlocal free
        gpus = (await one.measure()).gpus or ()
        free = [(gpu.free_mib or 0.0, gpu.total_mib or 0.0) for gpu in gpus]
        return bool(free) and all(left >= share * total for left, total in free)

    if await poll_until(is_free, _POLL_S, within_s):
        return f"{min(left for left, _ in free) / 1024:.1f} GiB of GPU memory are free"
    shown = ", ".join(f"{left / 1024:.1f} of {total / 1024:.1f} GiB" for left, total in free)
    raise ActError(f"asleep it leaves {shown or 'an unknown part'} free, {share:g} are needed")


def room_for_weights(weights: float, memory: ServerMemory | None, host: Host) -> SleepVerdict:
    """`weights`: bytes."""
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
