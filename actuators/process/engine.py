"""The bound process engine: starts, watches and ends the server processes of one target."""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from actuators.host import origin as server_origin
from actuators.host import ownership_env, procfs
from actuators.host.memory import count_oom_kills
from actuators.host.origin import Origin
from actuators.host.ownership_env import MarkedProcess, OwnershipNote
from actuators.host.process_group import end, exit_code, how_it_ended, spawn, was_ended_from_outside
from actuators.host.procfs import Process
from actuators.host.server_log import log_cause, log_lines, log_tail
from actuators.process import adopted
from actuators.process.address import address_of, find_listen_address, port_of
from actuators.process.watch import until_gone
from actuators.vllm import control, scheduler_class
from actuators.vllm.control import ControlEndpoint, control_path, note_on_live_limits, with_own_control
from actuators.vllm.engine import RECENT_LINES, VllmEngine, refuse_older_daemon
from actuators.vllm.probe import OpenAiProbe
from agent.domain.errors import ActError
from agent.domain.events import ServerLost
from agent.domain.model import PreflightResult, Server, Strategy
from agent.domain.ports import Now, Site
from vllm_facts.errors import FlagError
from vllm_facts.flag_parser import parse_setting
from vllm_facts.values import Setting

if TYPE_CHECKING:
    from actuators.process.plugin import ProcessOptions

_POLL_S = 0.25
_UNSUPPORTED = ("uds", "ssl_certfile", "ssl_keyfile")  # flags of servers that speak no plain HTTP on a port


class ProcessEngine(VllmEngine):
    """The servers of one target, each in a session of its own that outlives the daemon."""

    def __init__(self, options: "ProcessOptions", site: Site) -> None:
        super().__init__(site)
        self._options = options

    async def problems(self) -> Sequence[str]:
        found = await asyncio.to_thread(self._unstartable)
        if not self._options.serving:
            return found
        address = address_of(self._options.serving)
        if not await self.observe():
            why = (await OpenAiProbe(address=address).health()).why or "is no server to adopt"
            found.append(f"serving = {self._options.serving!r}: {why}; start it, or correct the URL")
        elif why := await asyncio.to_thread(adopted.obstacle_to_ending, address):
            found.append(f"serving = {self._options.serving!r}: {why}")
        return found

    async def observe(self) -> Sequence[Server]:
        running = await asyncio.to_thread(ownership_env.marked, self._site)
        ours = [
            Server(name=name, setting=_setting(one.argv), address=find_listen_address(one.argv))
            for name, one in sorted(running.items())
        ]
        found: Sequence[Server] = ()
        if self._options.serving:
            address, timeout_s = address_of(self._options.serving), self._options.health_timeout_s
            found = await adopted.find(address, self._site, self._options.command, timeout_s)
        return await asyncio.gather(*map(self._with_hot_knobs, (*ours, *found)))

    async def preflight(
        self, servers: Sequence[Server], setting: Setting, wanted: Strategy | Literal["auto"]
    ) -> PreflightResult:
        """Check only that the command line can be written; capacity is not checked."""
        if wanted not in {"auto", "surge"}:
            why = f'strategy = "{wanted}" needs containers: [targets.engine] kind = "docker"'
            return PreflightResult(problem=f'{why}; write "surge" here')
        try:
            (await asyncio.to_thread(self._origin)).command(setting, self._options.ports[0])
        except FlagError as error:
            return PreflightResult(problem=str(error), lasting=True)
        notes = tuple(
            f"a promotion ends the process at {one.address}: nothing answers there any more, since the new "
            "server gets another port; let clients ask the proxy before"
            for one in servers
            if not one.ours
        )
        notes = (*notes, *note_on_live_limits(servers, setting))
        return PreflightResult(strategy="surge", why=f"{servers[0].name} runs meanwhile", notes=notes)

    async def launch(self, server: Server, deadline_s: float) -> Server:
        """A second launch of the same server finds the one that the first has started."""
        async with self._lock(server.name):
            return await self._launch(server, deadline_s)

    async def _launch(self, server: Server, deadline_s: float) -> Server:
        one = (await self._find_fenced()).get(server.name)
        if one is not None:
            ownership_env.claim(self._site, server.name)
        try:
            one = one or self._start(server)
            address = find_listen_address(one.argv)
            async with asyncio.timeout(deadline_s):
                await self._healthy(one, address)
        except TimeoutError as error:
            tail = self._tail(server)
            await self._undo(server.name, one)
            raise ActError(f"{server.name} was not healthy within {deadline_s:g} s", tail) from error
        except (OSError, FlagError) as error:
            await self._undo(server.name, one)
            raise ActError(f"{server.name} cannot be started: {error}") from error
        except BaseException:
            await self._undo(server.name, one)
            raise
        setting = server.setting or _setting(one.argv)
        return await self._with_hot_knobs(replace(server, setting=setting, address=address, ours=True))

    async def _recent_log(self, server: Server, lines: int = RECENT_LINES) -> Sequence[str]:
        return (await asyncio.to_thread(lambda: log_lines(*self._log(server))))[-lines:]

    async def log(self, server: Server) -> tuple[str, ...]:
        try:
            return await asyncio.to_thread(self._tail, server)
        except OSError as error:
            raise ActError(f"the log of {server.name} cannot be read: {error.strerror}") from error

    async def retire(self, server: Server) -> None:
        running = await self._find_fenced()
        if server.ours:
            await self._end(server.name, running.get(server.name), self._options.stop_s)
            return
        if server.address not in {find_listen_address(one.argv) for one in running.values()}:
            await adopted.retire(server, self._options.stop_s)

    async def stop(self, server: Server, keep: int = 0) -> None:
        del keep
        raise ActError(f"{server.name} is a process: an ended process cannot be started again as it was")

    async def watch(self, server: Server, emit: Callable[[ServerLost], None], now: Now) -> None:
        def report(why: str, *, gone: bool, external: bool = False) -> None:
            log = self._tail(server)
            emit(ServerLost(at=now(), server=server.name, why=why, gone=gone, log=log, external=external))

        known, oom_kills = await asyncio.to_thread(self._process_of, server), count_oom_kills()
        why = "has no process any more"
        if known or not server.ours:
            why = await until_gone(
                OpenAiProbe(address=server.address),
                known,
                lambda why: report(f"{server.name} {why}", gone=False),
                every_s=self._options.health_every_s,
                timeout_s=self._options.health_timeout_s,
                misses=self._options.lost_after,
            )
        external = known is not None and self._ended_from_outside(server, known, oom_kills)
        report(self._with_cause(server, why), gone=True, external=external)

    # The origin of new servers.

    def _origin(self) -> Origin:
        if self._options.command:
            return server_origin.build_origin(self._options.command, self._options.env, self._options.cwd)
        running = adopted.find_listener(address_of(self._options.serving))
        origin = server_origin.adopted(running) if running else None
        origin = origin or server_origin.remembered(self._site.state_dir)
        if origin is None:
            raise ActError(
                f"no command is configured, and the process at {self._options.serving} cannot be read: "
                "write command"
            )
        return replace(origin, env={**origin.env, **self._options.env}, cwd=self._options.cwd or origin.cwd)

    async def _api_key(self, server: Server) -> str:  # noqa: ARG002 - all servers have the same
        with suppress(ActError, FlagError):
            return (await asyncio.to_thread(self._origin)).api_key
        return ""

    async def _control(self, server: Server) -> ControlEndpoint | None:
        one = await asyncio.to_thread(self._process_of, server)
        path = control_path(procfs.environment(one.pid)) if one else None
        return ControlEndpoint(path) if path is not None else None

    def _unstartable(self) -> list[str]:
        try:
            origin = self._origin()
            setting = parse_setting(origin.argv)
            self._free_port()
        except FlagError as error:
            return [f"command: {error}"]
        except ActError as error:
            return [error.why]
        found = [
            f"command: --{knob}: only plain HTTP on a port is supported"
            for knob in _UNSUPPORTED
            if knob in setting
        ]
        if not Path(origin.cwd).is_dir():
            found.append(f"cwd: there is no folder {origin.cwd!r}")
        elif not origin.program():
            found.append(f"command: {origin.argv[0]!r} is missing or not executable: write its full path")
        return found

    async def newest_epoch(self) -> int:
        running = await asyncio.to_thread(ownership_env.marked, self._site)
        marked = ownership_env.newest_epoch(self._site, running)
        return max(marked, control.newest_epoch(await self.observe()))

    # Starting and ending.

    async def _find_fenced(self) -> Mapping[str, MarkedProcess]:
        site = self._site
        running = await asyncio.to_thread(ownership_env.marked, site)
        refuse_older_daemon(site, ownership_env.newest_epoch(site, running))
        return running

    def _control_env(self, server: Server, origin: Origin) -> dict[str, str]:
        if scheduler_class.is_missing(server.setting or parse_setting(origin.argv), origin.env):
            return scheduler_class.write_folders(self._site).add_to(origin.env, server.name)
        return with_own_control(origin.env, server.name)

    def _start(self, server: Server) -> MarkedProcess:
        """No await between the choice of a port and the start: no other launch can choose the same one."""
        site = self._site
        if "/" in server.name:
            raise ActError(f"{server.name!r} cannot be the name of a server")
        ownership_env.prepare_folder(site)
        origin = self._origin()
        port = self._free_port()
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

    def _free_port(self) -> int:
        first, last = self._options.ports
        taken = {port_of(find_listen_address(procfs.words(one.pid))) for one, _ in ownership_env.any_marked()}
        free = [port for port in range(first, last + 1) if port not in taken]
        for again in (False, True):  # preferably one without old connections
            for port in free:
                with socket.socket() as probe, suppress(OSError):
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, again)
                    probe.bind(("", port))
                    return port
        raise ActError(f"ports: none of {first}..{last} is free: give a wider range")

    async def _healthy(self, one: MarkedProcess, address: str) -> None:
        probe, oom_kills = OpenAiProbe(address=address), count_oom_kills()
        while True:
            health = await probe.health()
            if not procfs.runs(one.process):
                server = Server(name=one.name, setting={})
                how = self._with_cause(server, how_it_ended(exit_code(one.process)))
                external = self._ended_from_outside(server, one.process, oom_kills)
                raise ActError(how, self._tail(server), external=external)
            if not health.why:
                return
            await asyncio.sleep(min(_POLL_S, self._options.health_every_s))

    def _process_of(self, server: Server) -> Process | None:
        """Return None if it is gone or not visible."""
        if not server.ours:
            return adopted.find_listener(server.address)
        one = ownership_env.marked(self._site).get(server.name)
        return one.process if one else None

    async def _end(self, name: str, one: MarkedProcess | None, grace_s: float) -> None:
        site = self._site
        await end(one.process if one else None, lambda: ownership_env.members(site, name), grace_s)
        ownership_env.drop_note(site, name)

    async def _undo(self, name: str, one: MarkedProcess | None) -> None:
        """End a failed launch, unless a newer daemon has taken the server over."""
        note = ownership_env.read_note(self._site, name)
        if note is None or note.epoch <= self._site.epoch:
            await self._end(name, one, 0)

    # Its log.

    def _with_cause(self, server: Server, why: str) -> str:
        cause = log_cause(*self._log(server))
        return f"{server.name} {why}" + (f": {cause}" if cause else "")

    def _ended_from_outside(self, server: Server, process: Process, oom_kills: int) -> bool:
        """`oom_kills`: by the kernel, before it ended."""
        cause, oom = log_cause(*self._log(server)), count_oom_kills() > oom_kills
        return was_ended_from_outside(exit_code(process), cause=cause, oom=oom)

    def _tail(self, server: Server) -> tuple[str, ...]:
        return log_tail(*self._log(server))

    def _log(self, server: Server) -> tuple[Path, int, frozenset[str]]:
        site = self._site
        note = ownership_env.read_note(site, server.name)
        hidden: frozenset[str] = frozenset()
        with suppress(ActError):
            hidden = self._origin().secrets
        return ownership_env.log_of(site, server.name), note.log_from if note else 0, hidden


def _setting(argv: Sequence[str]) -> Setting:
    try:
        return parse_setting(argv)
    except FlagError:
        return {}
