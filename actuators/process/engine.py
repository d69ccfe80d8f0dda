"""The bound process engine: starts, watches and ends the server processes of one target."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Literal

from flettner.actuators.host import origin as server_origin
from flettner.actuators.host import ownership_env, procfs
from flettner.actuators.host.listeners import describe_foreign, listens
from flettner.actuators.host.memory import count_oom_kills, until_freed
from flettner.actuators.host.origin import Origin, setting_of
from flettner.actuators.host.ownership_env import MarkedProcess, OwnershipNote
from flettner.actuators.host.process_group import end, exit_code, group_of, how_it_ended, spawn
from flettner.actuators.host.procfs import Process
from flettner.actuators.process import adopted, stopped
from flettner.actuators.process.address import choose_port, find_listen_address, parse_url
from flettner.actuators.process.logs import ServerLogs
from flettner.actuators.process.options import ProcessOptions
from flettner.actuators.process.preflight import Preflight, find_obstacles, start_key
from flettner.actuators.process.sleep import RunningServer, Sleeper
from flettner.actuators.process.upgrade import check_upgrade
from flettner.actuators.process.watch import until_gone
from flettner.actuators.process.way_back import describe_way_back, find_or_start_home
from flettner.actuators.vllm import control, scheduler_class
from flettner.actuators.vllm.control import ControlEndpoint, control_path, remove_own_socket, with_own_control
from flettner.actuators.vllm.engine import RECENT_LINES, VllmEngine, refuse_older_daemon
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.actuators.vllm.start_times import StartTimes, SwapPart
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.model import PreflightResult, Server, Strategy
from flettner.agent.domain.ports import Now, Site
from flettner.agent.domain.upgrade import AS_IT_IS
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.primitives.address import Address
from flettner.primitives.waiting import poll_until
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.sizing.effective_flags import chooses_cpus
from flettner.vllm_facts.values import Setting

_POLL_S = 0.25


class ProcessEngine(VllmEngine):
    """The servers of one target, each in a session of its own that outlives the daemon."""

    def __init__(self, options: ProcessOptions, site: Site) -> None:
        super().__init__(site)
        self._options = options
        self._times = StartTimes.at(site.state_dir)
        self._logs = ServerLogs(site=site, origin=self._origin)
        self.sleeper = Sleeper(site=site)
        self._stopped: dict[str, Origin] = {}  # as they ran

    async def problems(self) -> Sequence[str]:
        problems = await self.obstacles() if self._site.acts else []
        if (
            not self._options.serving
            or await self._find_awake(remembers=False)
            or stopped.newest_epoch(self._site)
        ):
            return problems
        health = await OpenAiProbe(address=str(parse_url(self._options.serving))).health()
        why = health.why or "is no server to adopt"
        return [*problems, f"serving = {self._options.serving!r}: {why}; start it, or correct the URL"]

    async def obstacles(self) -> list[str]:
        obstacles = await asyncio.to_thread(self._unstartable)
        if self._options.serving and (
            why := await asyncio.to_thread(adopted.obstacle_to_ending, parse_url(self._options.serving))
        ):
            obstacles.append(f"serving = {self._options.serving!r}: {why}")
        return obstacles

    async def observe(self) -> Sequence[Server]:
        return await self._with_hot_knobs(await self._find_awake(remembers=True))

    async def _find_awake(self, *, remembers: bool) -> list[Server]:
        """Return the servers that do not sleep.

        Only `observe` remembers an adopted one: what a check writes looks like the work of an earlier daemon.
        """
        running = await asyncio.to_thread(ownership_env.marked, self._site)
        servers = [
            Server(
                name=name,
                setting=setting_of(found.argv),
                address=_address_of(found.argv),
                on_cpus=chooses_cpus(procfs.environment(found.process.pid)),
            )
            for name, found in sorted(running.items())
        ]
        if self._options.serving:
            address, timeout_s = parse_url(self._options.serving), self._options.health_timeout_s
            servers += await adopted.find(
                address, self._site, self._options.command, timeout_s, remembers=remembers
            )
        return await asyncio.to_thread(lambda: [server for server in servers if not self._is_asleep(server)])

    async def preflight(
        self,
        servers: Sequence[Server],
        setting: Setting,
        wanted: Strategy | Literal["auto"],
        start: Setting = AS_IT_IS,
        gpu: str = "",
    ) -> PreflightResult:
        present = (await asyncio.to_thread(self._origin)).upgraded(servers[-1].start)
        try:
            port = self._options.ports[0]
            upgrade = await check_upgrade(present, start, setting, port=port, runs=self._site.acts, gpu=gpu)
        except FlagError as error:
            return PreflightResult(problem=str(error))
        running = await asyncio.to_thread(self._running, servers[-1])
        asked = Preflight(
            origin=present.upgraded(start),
            times=self._times,
            sleeper=self.sleeper,
            running=running,
            port=port,
        )
        result = await asked.predict(servers, upgrade.flags.apply(setting), wanted)
        resolved = {**upgrade.resolved, **result.resolved}
        notes = (*upgrade.notes, *result.notes)
        return replace(result, resolved=resolved, notes=notes, versions=upgrade.versions)

    async def launch(self, server: Server, deadline_s: float) -> Server:
        """Launch a server; a second launch of it finds the process that the first has started."""
        async with self._lock(server.name):
            running = await self._find_fenced()
            await self._wake(server, running)
            launched = await self._launch(server, running.get(server.name), deadline_s)
            stopped.drop_note(self._site, server.name)
            return launched

    async def _launch(self, server: Server, process: MarkedProcess | None, deadline_s: float) -> Server:
        began_s, ours = asyncio.get_running_loop().time(), True
        if process is not None:
            ownership_env.claim(self._site, server.name)
        elif not server.ours and (listener := _find_listener(server)):
            process = MarkedProcess(
                name=server.name, process=listener, argv=tuple(procfs.words(listener.pid)), epoch=0
            )
            ours = False
        starts = process is None
        try:
            process = process or self._start(server)
            address = _address_of(process.argv)
            async with asyncio.timeout(deadline_s):
                await self._healthy(process, address)
        except TimeoutError as error:
            tail = self._logs.tail(server.name)
            await self._undo(server.name, process)
            raise ActError(f"{server.name} was not healthy within {deadline_s:g} s", tail) from error
        except (OSError, FlagError) as error:
            await self._undo(server.name, process)
            raise ActError(f"{server.name} cannot be started: {error}") from error
        except BaseException:
            await self._undo(server.name, process)
            raise
        if starts:
            self._times.record(self._start_key(server), asyncio.get_running_loop().time() - began_s, None)
        setting = server.setting or setting_of(process.argv)
        healthy = replace(server, setting=setting, address=address, ours=ours)
        return (await self._with_hot_knobs([healthy]))[0]

    async def warm_up(
        self,
        server: Server,
        requests: int,
        deadline_s: float,
        prompts: Sequence[str] = (),
        prefixes: Sequence[SharedPrefix] = (),
    ) -> None:
        with self._timed("warm_up", server):
            await super().warm_up(server, requests, deadline_s, prompts, prefixes)

    async def _recent_log(self, server: Server, lines: int = RECENT_LINES) -> Sequence[str]:
        return (await asyncio.to_thread(self._logs.lines, server.name))[-lines:]

    async def log(self, server: Server) -> tuple[str, ...]:
        try:
            return await asyncio.to_thread(self._logs.tail, server.name)
        except OSError as error:
            raise ActError(f"the log of {server.name} cannot be read: {error.strerror}") from error

    async def retire(self, server: Server) -> None:
        running, control = await self._find_fenced(), await self._control(server)
        await self._end_server(server, running, self._options.stop_s)
        stopped.drop_note(self._site, server.name)
        remove_own_socket(control, server)

    async def _end_server(self, server: Server, running: Mapping[str, MarkedProcess], grace_s: float) -> None:
        if server.ours or server.name in running:
            await self._end(server.name, running.get(server.name), grace_s)
        elif server.address not in {_address_of(process.argv) for process in running.values()}:
            await adopted.retire(server, grace_s)

    async def stop(self, server: Server, keep: int = 0) -> str | None:
        """Let it sleep, or end it; a launch starts it with the same setting, at its port if that is free."""
        del keep
        async with self._lock(server.name):
            running = await self._find_fenced()
            running_server = await asyncio.to_thread(self._running, server)
            try:
                if running_server is None:
                    raise ActError("it does not run")  # noqa: TRY301 - as any other reason
                with self._timed("sleep", server):
                    how = await self.sleeper.put_to_sleep(running_server)
            except ActError as error:
                if running_server and (origin := server_origin.adopted(running_server.process)):
                    self._stopped[server.name] = origin
                stopped.write_ended(self._site, server.name)
                with self._timed("stop", server):
                    await self._end_server(server, running, self._options.stop_s)
                    await until_freed()
                return f"{server.name} is stopped, since it cannot sleep: {error.why}"
            return f"{server.name} sleeps: {how}"

    async def _wake(self, server: Server, running: Mapping[str, MarkedProcess]) -> None:
        """Wake it if it sleeps. If that fails it is ended, and the next launch starts it. Raises ActError."""
        running_server = await asyncio.to_thread(self._running, server)
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            if await self.sleeper.wake(server.name, running_server):
                self._times.record_part(self._start_key(server), "wake", clock() - began_s)
        except ActError as error:
            log = self._logs.tail(server.name)
            stopped.write_ended(self._site, server.name)
            await self._end_server(server, running, 0)
            raise ActError(error.why, log) from error

    @contextmanager
    def _timed(self, part: SwapPart, server: Server) -> Iterator[None]:
        """Record how long it took, unless it failed."""
        began_s = asyncio.get_running_loop().time()
        yield
        self._times.record_part(self._start_key(server), part, asyncio.get_running_loop().time() - began_s)

    async def watch(self, server: Server, emit: Callable[[ServerLost], None], now: Now) -> None:
        def report(why: str, *, gone: bool, external: bool = False) -> None:
            log = self._logs.tail(server.name)
            emit(ServerLost(at=now(), server=server.name, why=why, gone=gone, log=log, external=external))

        process, oom_kills = await asyncio.to_thread(self._process_of, server), count_oom_kills()
        why = "has no process any more"
        if process or not server.ours:
            why = await until_gone(
                OpenAiProbe(address=server.address),
                process,
                lambda why: report(f"{server.name} {why}", gone=False),
                find_foreign=lambda: self._find_foreign(server.name, process, server.address),
                every_s=self._options.health_every_s,
                timeout_s=self._options.health_timeout_s,
                misses=self._options.lost_after,
            )
        external = process is not None and self._logs.was_ended_from_outside(server.name, process, oom_kills)
        report(self._logs.with_cause(server.name, why), gone=True, external=external)

    async def way_back(self) -> list[str]:
        running = ownership_env.marked(self._site)
        return describe_way_back(running, self._origin(), self._home_address) if running else []

    async def start_home(self, server: Server, deadline_s: float) -> Server:
        """Start `server` once more, without flettner's marks, at the operator's address if that is free.

        Idempotent. Raises ActError; then nothing new runs.
        """
        running = (await self._find_fenced()).get(server.name)
        origin = server_origin.adopted(running.process) if running else self._stopped.get(server.name)
        if origin is None:
            raise ActError(f"{server.name} does not run any more")
        home = await asyncio.to_thread(
            find_or_start_home, self._site, origin, self._home_address, self._options.ports
        )
        try:
            async with asyncio.timeout(deadline_s):
                await self._healthy(home, _address_of(home.argv))
        except (ActError, TimeoutError) as error:
            log = self._logs.tail(home.name)
            await end(home.process, group_of(home.process), 0)
            why = getattr(error, "why", f"it was not healthy within {deadline_s:g} s")
            raise ActError(f"your own server did not start: {why}", log) from error
        return replace(server, name=home.name, address=_address_of(home.argv), ours=False)

    @property
    def _home_address(self) -> Address:
        """Where the operator's server listened, or would by its command."""
        if self._options.serving:
            return parse_url(self._options.serving)
        return find_listen_address(self._options.command) or Address("127.0.0.1", 8000)

    # The origin of new servers.

    def _origin(self) -> Origin:
        if self._options.command:
            return server_origin.build_origin(self._options.command, self._options.env, self._options.cwd)
        running = adopted.find_listener(parse_url(self._options.serving))
        origin = server_origin.adopted(running) if running else None
        origin = origin or server_origin.remembered(self._site.state_dir)
        if origin is None and running is None:
            raise ActError(
                f"no command is configured, and no process is seen that listens at {self._options.serving}: "
                "start the server, or write command"
            )
        if origin is None:
            raise ActError(
                f"no command is configured, and the process at {self._options.serving} cannot be read: "
                "write command"
            )
        return replace(origin, env={**origin.env, **self._options.env}, cwd=self._options.cwd or origin.cwd)

    async def check_address(self, server: Server) -> None:
        process = await asyncio.to_thread(self._process_of, server)
        if why := await asyncio.to_thread(self._why_unsafe, server, process):
            raise ActError(f"{server.name}: {why}: end that process, or give other `ports`")

    def _why_unsafe(self, server: Server, process: Process | None) -> str:
        """Why what is sent to its address may reach another process; empty if it cannot."""
        if process is not None and not listens(server.addresses[0]):
            return f"no process listens on {server.address}, so that any may"
        return self._find_foreign(server.name, process, server.address)

    def _find_foreign(self, name: str, process: Process | None, address: str) -> str:
        """Describe a process that listens in the server's place; empty if the server's is not visible."""

        def family() -> Iterator[Process]:
            if process is not None:
                yield process
                yield from procfs.with_descendants([process])
            yield from ownership_env.members(self._site, name)

        return "" if process is None else describe_foreign(Address.parse(address), family)

    async def _api_key(self, server: Server) -> str:
        await self.check_address(server)
        with suppress(ActError, FlagError):
            return (await asyncio.to_thread(self._origin)).api_key
        return ""

    async def _control(self, server: Server) -> ControlEndpoint | None:
        process = await asyncio.to_thread(self._process_of, server)
        path = control_path(procfs.environment(process.pid)) if process else None
        return ControlEndpoint(path, process.pid) if process and path is not None else None

    def _unstartable(self) -> list[str]:
        try:
            obstacles = find_obstacles(self._origin())
            self._free_port()
        except ActError as error:
            return [error.why]
        return obstacles

    def _start_key(self, server: Server) -> str:
        return start_key(self._origin().upgraded(server.start))

    async def newest_epoch(self) -> int:
        running = await asyncio.to_thread(ownership_env.marked, self._site)
        marked = ownership_env.newest_epoch(self._site, running)
        servers = await self._with_hot_knobs(await self._find_awake(remembers=False))
        return max(marked, stopped.newest_epoch(self._site), control.newest_epoch(servers))

    # Starting and ending.

    async def _find_fenced(self) -> Mapping[str, MarkedProcess]:
        site = self._site
        running = await asyncio.to_thread(ownership_env.marked, site)
        newest = max(ownership_env.newest_epoch(site, running), stopped.newest_epoch(site))
        refuse_older_daemon(site, newest)
        return running

    def _control_env(self, server: Server, origin: Origin) -> dict[str, str]:
        if scheduler_class.is_missing(server.setting or origin.setting, origin.env):
            return scheduler_class.write_folders(self._site).add_to(origin.env, server.name)
        return with_own_control(origin.env, server.name)

    def _start(self, server: Server) -> MarkedProcess:
        """Start without an await since the choice of the port, so that no other launch can choose it."""
        site = self._site
        if "/" in server.name:
            raise ActError(f"{server.name!r} cannot be the name of a server")
        ownership_env.prepare_folder(site)
        origin = self._origin().upgraded(server.start)
        port = self._free_port(server.addresses[0].port if server.addresses else 0)
        argv = tuple(origin.command(server.setting, port))
        log = ownership_env.log_of(site, server.name)
        log_from = log.stat().st_size if log.exists() else 0
        env = {**self._control_env(server, origin), **ownership_env.marks(site, server.name)}
        started = spawn(argv, env=env, cwd=origin.cwd, log=log)
        note = OwnershipNote(
            pid=started.pid,
            started=started.started,
            argv=argv,
            port=port,
            epoch=site.epoch,
            log_from=log_from,
        )
        ownership_env.write_note(site, server.name, note)
        return MarkedProcess(name=server.name, process=started, argv=argv, epoch=site.epoch)

    def _free_port(self, wanted: int = 0) -> int:
        """Return `wanted` if it is free."""
        argvs = [procfs.words(process.pid) for process, _ in ownership_env.any_marked()]
        taken = {address.port for argv in argvs if (address := find_listen_address(argv)) is not None}
        return choose_port(self._options.ports, taken, wanted)

    async def _healthy(self, server: MarkedProcess, address: str) -> None:
        probe, oom_kills = OpenAiProbe(address=address), count_oom_kills()

        async def is_healthy() -> bool:
            health = await probe.health()
            if not procfs.runs(server.process):
                how = self._logs.with_cause(server.name, how_it_ended(exit_code(server.process)))
                external = self._logs.was_ended_from_outside(server.name, server.process, oom_kills)
                raise ActError(how, self._logs.tail(server.name), external=external)
            if not health.why and (foreign := await asyncio.to_thread(find_foreign)):
                why = f"{foreign}, in place of {server.name}: end that process, or give other `ports`"
                raise ActError(why, external=True)
            return not health.why

        def find_foreign() -> str:
            return self._find_foreign(server.name, server.process, address)

        await poll_until(is_healthy, min(_POLL_S, self._options.health_every_s))

    def _process_of(self, server: Server) -> Process | None:
        """Return None if it is gone or not visible."""
        running = self._running(server)
        return running.process if running else None

    def _running(self, server: Server) -> RunningServer | None:
        """Return its process; an adopted server that flettner has started again is marked as its own."""
        name, site = server.name, self._site
        if marked := ownership_env.marked(site).get(name):
            address = _address_of(marked.argv)
            return RunningServer(
                name=name, address=address, process=marked.process, log=self._logs.place(name)
            )
        listener = None if server.ours else _find_listener(server)
        return RunningServer(name=name, address=server.address, process=listener) if listener else None

    def _is_asleep(self, server: Server) -> bool:
        """Whether the server sleeps. The note is read first, since there is mostly none."""
        note = stopped.read_note(self._site, server.name)
        return note is not None and note.sleeps and note.names(self._process_of(server))

    async def _end(self, name: str, server: MarkedProcess | None, grace_s: float) -> None:
        site = self._site
        await end(server.process if server else None, lambda: ownership_env.members(site, name), grace_s)
        ownership_env.drop_note(site, name)

    async def _undo(self, name: str, server: MarkedProcess | None) -> None:
        """End a failed launch, unless a newer daemon has taken the server over."""
        note = ownership_env.read_note(self._site, name)
        if note is None or note.epoch <= self._site.epoch:
            await self._end(name, server, 0)


def _address_of(argv: Sequence[str]) -> str:
    """Return the address of a command line; empty if it cannot be read."""
    return str(find_listen_address(argv) or "")


def _find_listener(server: Server) -> Process | None:
    return adopted.find_listener(server.addresses[0]) if server.addresses else None
