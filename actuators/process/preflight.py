"""Compute what a start and a change of a process take: obstacles, the strategy, the outage of a swap."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from flettner.actuators.host import memory
from flettner.actuators.host.memory import Host
from flettner.actuators.host.origin import Origin
from flettner.actuators.process.gpu_shortage import find_placement, find_shortage
from flettner.actuators.process.sleep import RunningServer, Sleeper
from flettner.actuators.process.start_log import read_start
from flettner.actuators.vllm.control import note_on_live_limits
from flettner.actuators.vllm.gpu_placement import Placement, changes_layout
from flettner.actuators.vllm.host_demand import describe_host_shortage, host_memory_needed
from flettner.actuators.vllm.outage import predict_outage
from flettner.actuators.vllm.server_state import describe_lost_state
from flettner.actuators.vllm.sleep import SleepVerdict
from flettner.actuators.vllm.start_log import describe_start
from flettner.actuators.vllm.start_times import StartTimes
from flettner.agent.domain.model import PreflightResult, Server, Strategy
from flettner.agent.machine.strategy import HostCapacity, choose_strategy
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.values import Setting

_UNSUPPORTED = ("uds", "ssl_certfile", "ssl_keyfile")  # flags of servers that speak no plain HTTP on a port


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """`port`: for the check of the command line. `running`: the process of the last server; None: unseen."""

    origin: Origin
    times: StartTimes
    sleeper: Sleeper
    running: RunningServer | None
    port: int
    find_placement: Callable[[RunningServer, Setting], Awaitable[Placement | None]] = find_placement

    async def predict(
        self, servers: Sequence[Server], setting: Setting, wanted: Strategy | Literal["auto"]
    ) -> PreflightResult:
        """Check that the command line can be written, and that a green beside the others finds memory."""
        if wanted == "save":
            why = f"{servers[-1].name} is a process: an ended process cannot be started again as it was"
            return PreflightResult(problem=f"{why}; containers and Deployments can", lasting=True)
        if wanted == "replace":
            why = 'strategy = "replace" needs containers: [targets.engine] kind = "docker"'
            return PreflightResult(problem=f'{why}; write "surge" or "swap" here')
        try:
            self.origin.command(setting, self.port)
        except FlagError as error:
            return PreflightResult(problem=str(error), lasting=True)
        notes = (
            *map(_note_on_end, (server for server in servers if not server.ours)),
            *note_on_live_limits(servers, setting),
            *describe_lost_state(self.origin.env),
        )
        if problem := await _find_host_shortage(setting, beside=wanted != "swap"):
            return PreflightResult(problem=problem)
        process = self.running.process if self.running else None
        measured_s, log = await asyncio.to_thread(read_start, process)
        start_s, note = self.times.predict(start_key(self.origin), None, measured_s)
        notes = (*notes, note, *describe_start(log))
        if self.running and changes_layout(self.running.setting, setting):
            placement = await self.find_placement(self.running, setting)
            if placement is not None:
                return await self._predict_layout(placement, servers, wanted, start_s, notes)
        if wanted != "swap":
            if self.running and (why := await find_shortage(self.running, self.origin.env, setting)):
                return PreflightResult(problem=why)
            why = f"the new server starts beside {servers[0].name}, which serves meanwhile"
            return PreflightResult(strategy="surge", why=why, start_s=start_s, shares_card=True, notes=notes)
        return await self._predict_swap(servers, start_s, notes)

    async def _predict_layout(
        self,
        placement: Placement,
        servers: Sequence[Server],
        wanted: Strategy | Literal["auto"],
        start_s: float | None,
        notes: tuple[str, ...],
    ) -> PreflightResult:
        """Green gets free GPUs; where there are too few, it takes the slot of the only server."""
        choice = choose_strategy(wanted, len(servers), placement.capacity)
        if choice.strategy == "surge":
            resolved = placement.resolve(beside=True)
            return PreflightResult(
                strategy="surge", why=choice.why, start_s=start_s, notes=notes, resolved=resolved
            )
        if choice.strategy == "replace":
            why = f"{placement.capacity.why}; processes are not replaced one by one: free some GPUs"
            return PreflightResult(problem=why)
        if choice.strategy is None or placement.shortage:
            return PreflightResult(problem=placement.shortage or choice.why)
        swap = await self._predict_swap(servers, start_s, notes)
        return replace(swap, why=choice.why, resolved=placement.resolve(beside=False))

    async def _predict_swap(
        self, servers: Sequence[Server], start_s: float | None, notes: tuple[str, ...]
    ) -> PreflightResult:
        choice = choose_strategy("swap", len(servers), HostCapacity(free=None, why="it is not measured"))
        if choice.strategy is None:
            return PreflightResult(problem=choice.why)
        verdict = SleepVerdict(fits=False, why="its process cannot be seen")
        if self.running is not None:
            verdict = await self.sleeper.judge(self.running)
        outage_s, parts = predict_outage(
            self.times, start_key(self.origin), servers[-1].name, verdict, start_s
        )
        return PreflightResult(
            strategy="swap", why=choice.why, start_s=start_s, outage_s=outage_s, notes=(*parts, *notes)
        )


async def _find_host_shortage(setting: Setting, *, beside: bool) -> str:
    """Why the host has too little memory for what the flags ask; empty: it may have enough."""
    if not host_memory_needed(setting):
        return ""
    free, total = await asyncio.gather(memory.free_memory(), memory.total_memory())
    if not beside:
        return describe_host_shortage(setting, total, "this host has")
    spare = None if free is None else max(0, memory.spare_memory(Host(memory=free, memory_total=total)))
    why = describe_host_shortage(setting, spare, "beside the server in force this host has")
    return f'{why}, or write strategy = "swap"' if why else ""


def start_key(origin: Origin) -> str:
    """Return the key of StartTimes: starts of the same program and model take about as long."""
    return f"{origin.argv[0]} {origin.setting.get('model', '')}"


def _note_on_end(server: Server) -> str:
    return (
        f"a promotion ends the process at {server.address}: nothing answers there any more, since the new "
        "server gets another port; let clients ask the proxy before"
    )


def find_obstacles(origin: Origin) -> list[str]:
    """Return why no server can be started from a command line, each with the fix."""
    try:
        setting = parse_setting(origin.argv)
    except FlagError as error:
        return [f"command: {error}"]
    obstacles = [
        f"command: --{knob}: only plain HTTP on a port is supported"
        for knob in _UNSUPPORTED
        if knob in setting
    ]
    if not Path(origin.cwd).is_dir():
        obstacles.append(f"cwd: there is no folder {origin.cwd!r}")
    elif not origin.program():
        obstacles.append(f"command: {origin.argv[0]!r} is missing or not executable: write its full path")
    return obstacles
