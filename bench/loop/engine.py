"""The engine of a world: launches virtual servers from flags, as the process engine launches real ones."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from bench.loop.config import server_names
from bench.loop.world import PROGRAM, World
from flettner.actuators.host.memory import GpuMemory
from flettner.actuators.host.origin import Origin
from flettner.actuators.vllm.gpu_demand import gpus_needed
from flettner.actuators.vllm.gpu_placement import changes_layout, place
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import PreflightResult, Server, Strategy
from flettner.agent.domain.reading import Gpu
from flettner.agent.domain.upgrade import AS_IT_IS
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.agent.machine.strategy import choose_strategy
from flettner.simulator.card import Card
from flettner.simulator.flags import Flags, InvalidFlagError, parse
from flettner.simulator.live_limits import find_knobs
from flettner.simulator.memory import StartError
from flettner.simulator.scheduler import SimulatedRequest
from flettner.simulator.text import draws
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.values import GPUS, Setting
from tests.support.data_parallel_server import new_virtual_server
from tests.support.fake_engine import FakeEngine
from tests.support.virtual_server import VirtualServer

REFUSED_S = 1.0  # until a process with invalid flags has exited
STOP_S = 1.0
PORT = 8101
AT_ONCE, TOKENS, WORDS = 8, 16, (8, 64, 256, 1024)  # of warm-up requests; see actuators/vllm/warm_up.py
POLL_S = 0.05
GPU_MIB = 40_000.0


def flags_of(world: World, setting: Setting) -> Flags:
    """Return the flags of a server with this full setting; empty: as configured. Raises InvalidFlagError.

    On which GPUs it runs is no flag.
    """
    setting = {knob: value for knob, value in setting.items() if knob != GPUS}
    origin = Origin(argv=("python", *world.command), env={}, cwd="")
    words = origin.command(setting, PORT)[1 + len(PROGRAM[:2]) :]
    try:
        return parse(words)
    except SystemExit:
        raise InvalidFlagError("EngineArgs", f"the simulator does not know {' '.join(words)}") from None


class VirtualEngine(FakeEngine):
    """`virtual`: the servers that run, by name."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(takes_s=STOP_S)
        self.card = None if world.shared_card is None else Card()  # of all servers; None: each has its own
        self.virtual: dict[str, VirtualServer] = {}
        self.left: list[VirtualServer] = []  # ended since the site last looked
        self._world = world
        self._seed = seed
        self._start_s: float | None = None  # of the last start
        for name in server_names(world) if world.servers > 1 else ():
            setting = parse_setting(("python", *world.command))
            self.servers[name] = Server(name=name, setting=setting, address=self._new_address())
            self.virtual[name] = self._build(name, flags_of(world, setting))

    async def preflight(
        self,
        servers: Sequence[Server],
        setting: Setting,
        wanted: Strategy | Literal["auto"],
        start: Setting = AS_IT_IS,
        gpu: str = "",
    ) -> PreflightResult:
        """Check the flags as vLLM does; whether the memory suffices shows at the start."""
        del start, gpu
        self.calls.append(("preflight", servers[0].name))
        if wanted == "save":
            return PreflightResult(strategy="save", start_s=self._start_s)
        if wanted not in {"auto", "surge"}:
            return PreflightResult(problem="only surge is simulated")
        try:
            flags_of(self._world, setting)
        except InvalidFlagError as error:
            return PreflightResult(problem=str(error), lasting=True)
        if self._world.gpus is not None and changes_layout(servers[-1].setting, setting):
            return self._place(servers[-1], setting, self._world.gpus)
        return PreflightResult(
            why=f"the new server starts beside {servers[0].name}, which serves meanwhile",
            start_s=self._start_s,
            shares_card=self.card is not None,
        )

    def _place(self, blue: Server, setting: Setting, host: int) -> PreflightResult:
        """Choose GPUs as the process engine does. Those of its servers are full, all others free."""
        taken = {gpu for server in self.servers.values() for gpu in self._gpus_of(server)}
        free = {True: 0.0, False: GPU_MIB}
        gpus = [
            GpuMemory(index=at, uuid=f"GPU-{at}", free_mib=free[str(at) in taken], total_mib=GPU_MIB)
            for at in range(host)
        ]
        placement = place(setting, self._gpus_of(blue), [], gpus)
        if placement.shortage:
            return PreflightResult(problem=placement.shortage)
        choice = choose_strategy("auto", len(self.servers), placement.capacity)
        if choice.strategy is None:
            return PreflightResult(problem=choice.why)
        start_s = self._start_s or self._world.start_s
        return PreflightResult(
            strategy=choice.strategy,
            why=choice.why,
            start_s=start_s,
            outage_s=STOP_S + start_s if choice.strategy == "swap" else 0.0,
            resolved=placement.resolve(beside=choice.strategy == "surge"),
        )

    def describe_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of the host, as the sensor `nvidia_smi` names them; none where the world has no number."""
        flags = next((server.flags for server in self.virtual.values()), None)
        if flags is None:
            return ()
        name = flags.simulation.hardware.gpu
        if self._world.neighbour is not None:
            return (self._describe_card(name, self._world.neighbour),)
        if self._world.gpus is None:
            return ()
        return tuple(Gpu(index=at, uuid=f"GPU-{at}", name=name) for at in range(self._world.gpus))

    def _describe_card(self, name: str, neighbour: float) -> Gpu:
        """The card of all servers, each with its share, beside another process."""
        shares = [server.flags.memory.gpu_memory_utilization for server in self.virtual.values()]
        used_mib = GPU_MIB * min(1.0, neighbour + sum(shares))
        return Gpu(index=0, uuid="GPU-0", name=name, memory_used_mib=used_mib, memory_total_mib=GPU_MIB)

    def _gpus_of(self, server: Server) -> tuple[str, ...]:
        given = str(server.start.get(GPUS) or "")
        names = given.split(",") if given else [str(at) for at in range(self._world.gpus or 0)]
        return tuple(names[: gpus_needed(server.setting)])

    async def launch(self, server: Server, deadline_s: float) -> Server:
        self.calls.append(("launch", server.name))
        if server.name in self.virtual:
            return self.servers[server.name]
        try:
            async with asyncio.timeout(deadline_s):
                virtual = await self._start(server)
        except TimeoutError as error:
            raise ActError(f"{server.name} was not healthy within {deadline_s:g} s") from error
        setting = server.setting or parse_setting(("python", *self._world.command))
        if server.name in self.virtual:  # an earlier launch was faster
            return self.servers[server.name]
        again = self.stopped.pop(server.name, None)
        started = again or replace(server, setting=setting, address=self._new_address(), ours=True)
        self.virtual[server.name], self.servers[server.name] = virtual, started
        if self._world.live_cap:
            knobs = find_knobs(virtual.flags, asyncio.get_running_loop().time)
            self.hot.knobs[server.name], virtual.new_limits = knobs, knobs.take
        return self.hot.describe(started)

    async def warm_up(
        self,
        server: Server,
        requests: int,
        deadline_s: float,
        prompts: Sequence[str] = (),
        prefixes: Sequence[SharedPrefix] = (),
    ) -> None:
        """Send one request alone, then the others, AT_ONCE at a time."""
        del deadline_s, prompts, prefixes
        virtual, clock = self.virtual[server.name], asyncio.get_running_loop().time
        for number in range(requests):
            while virtual.open >= (AT_ONCE if number > 1 else 1):
                await asyncio.sleep(POLL_S)
                virtual.advance(clock())
            words = WORDS[number % len(WORDS)]
            request = SimulatedRequest(name=f"warm-{number}", prompt=words, wanted=TOKENS, arrived_at=clock())
            virtual.ask(request, probe=True)
        while virtual.open:
            await asyncio.sleep(POLL_S)
            virtual.advance(clock())

    async def busy(self, server: Server) -> int | None:
        virtual = self.virtual.get(server.name)
        return None if virtual is None else virtual.open

    async def stop(self, server: Server, keep: int = 0) -> None:
        if self._world.servers == 1 and self._world.gpus is None:
            raise ActError(f"{server.name} is a process: an ended process cannot be started again as it was")
        await super().stop(server, keep)
        if (virtual := self.virtual.pop(server.name, None)) is not None:
            self.left.append(virtual)

    async def retire(self, server: Server) -> None:
        await super().retire(server)
        virtual = self.virtual.pop(server.name, None)
        if virtual is not None:
            self.left.append(virtual)

    def _new_address(self) -> str:
        return f"127.0.0.1:{next(self._ports)}"

    def _build(self, name: str, flags: Flags, ready_in_s: float = 0.0) -> VirtualServer:
        """Raises StartError."""
        now_s = asyncio.get_running_loop().time()
        seeded = replace(flags, seed=draws(self._seed, "server", name).getrandbits(32))
        return new_virtual_server(name, seeded, now_s=now_s + ready_in_s, unix_s=now_s, card=self.card)

    async def _start(self, server: Server) -> VirtualServer:
        """Raises ActError where the simulator would exit."""
        try:
            flags = flags_of(self._world, server.setting)
        except InvalidFlagError as error:
            await asyncio.sleep(REFUSED_S)
            raise ActError(f"{server.name} exited with code 1: {error}") from error
        wake_s = self._world.wake_s if server.name in self.stopped else None
        start_s = flags.simulation.start_s if wake_s is None else wake_s
        card = self.card or Card()  # a card of its own is not slowed
        await asyncio.sleep(start_s / 2)
        try:
            virtual = self._build(server.name, flags, ready_in_s=start_s / 2)
        except StartError as error:
            raise ActError(f"{server.name} exited with code 1: {error}") from error
        card.take(server.name, self._world.shared_card or 0.0)
        try:
            await asyncio.sleep(start_s / 2)
        finally:
            card.leave(server.name)
        self._start_s = start_s
        return virtual
