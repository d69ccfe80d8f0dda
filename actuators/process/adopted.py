"""Servers that a third party has started: find them for a first config, adopt one, end it."""

import asyncio
import os
import pwd
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flettner.actuators.host import origin as server_origin
from flettner.actuators.host import ownership_env, procfs
from flettner.actuators.host.origin import setting_of
from flettner.actuators.host.process_group import end, group_of
from flettner.actuators.host.procfs import Process
from flettner.actuators.process.address import find_listen_address
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.agent.plugins.installation import FoundServers
from flettner.primitives.address import Address
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import is_vllm_server, parse_setting
from flettner.vllm_facts.sizing.effective_flags import chooses_cpus

_CONTAINED = re.compile(r"docker|containerd|libpod|kubepods|crio|lxc")  # in a path of /proc/PID/cgroup
_OK = 200
_BROKEN = 500  # from here on a fault of the server; below, no server with /health
_TO_DO = "run flettner as the user of that server, or start it as flettner's user"


def find_listener(address: Address) -> Process | None:
    """Return the process that listens there, unless it is a server of ours."""
    listener = procfs.find_listener(address.port)
    return None if listener and ownership_env.is_marked(listener) else listener


async def find(
    address: Address, site: Site, command: Sequence[str], timeout_s: float, *, remembers: bool
) -> Sequence[Server]:
    """Return the server there, or none. `command` gives its setting if its command line is not readable.

    A busy server may take longer than the probe waits: it counts as running while it listens. With
    `remembers` its origin is written to the state directory, as it may be gone when others are started.
    """
    health = await OpenAiProbe(address=str(address)).health(timeout_s)
    if health.status is None or health.status >= _BROKEN:
        if not await asyncio.to_thread(_still_listens, address, site):
            return ()
    elif health.status != _OK:
        return ()
    server, origin = await asyncio.to_thread(_describe, address, site, command)
    if origin and remembers:
        await asyncio.to_thread(server_origin.remember, site.state_dir, origin)
    return (server,) if server else ()


def obstacle_to_ending(address: Address) -> str:
    """Return why it can never be retired; empty: it can, or no process listens there."""
    user = procfs.listening_user(address.port)
    if user is None:
        return ""
    listener = procfs.find_listener(address.port)
    if listener is None:
        whose = f"belongs to user {user}" if user != os.geteuid() else "is hidden from this user"
        return (
            f"its process cannot be seen ({whose}): its flags are known from `command` only, and flettner "
            f"could never retire it: {_TO_DO}"
        )
    if not may_signal(listener):
        return f"process {listener.pid} belongs to another user, so flettner could never retire it: {_TO_DO}"
    return ""


def may_signal(process: Process) -> bool:
    """Return True for an ended process, too."""
    try:
        os.kill(process.pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


async def retire(server: Server, stop_s: float) -> None:
    """End it with its descendants; return when it is gone. Raises ActError without permission."""
    (address,) = server.addresses
    leader = await asyncio.to_thread(find_listener, address)
    if leader:
        await end(leader, await asyncio.to_thread(group_of, leader), stop_s)
    elif await _serves(address):
        raise ActError(
            f"{server.name} at {address} still serves, and its process cannot be seen: "
            "stop it yourself, or run the daemon as its user"
        )


async def _serves(address: Address) -> bool:
    if await asyncio.to_thread(procfs.listening_user, address.port) is not None:
        return True
    return (await OpenAiProbe(address=str(address)).health()).status == _OK


def _still_listens(address: Address, site: Site) -> bool:
    """Whether the listener is the server itself, not a child that outlived it and holds its socket."""
    if procfs.listening_user(address.port) is None:
        return False
    remembered, listener = server_origin.remembered(site.state_dir), find_listener(address)
    return listener is None or remembered is None or remembered.argv == tuple(procfs.words(listener.pid))


def _describe(
    address: Address, site: Site, command: Sequence[str]
) -> tuple[Server | None, server_origin.Origin | None]:
    listener = procfs.find_listener(address.port)
    if listener and ownership_env.is_marked(listener):
        return None, None
    origin = server_origin.adopted(listener) if listener else None
    setting = setting_of(origin.argv if origin else ()) or setting_of(command)
    on_cpus = origin is not None and chooses_cpus(origin.env)
    name, at = f"{site.target}-r0", str(address)
    return Server(name=name, setting=setting, address=at, ours=False, on_cpus=on_cpus), origin


async def find_unmanaged_servers() -> FoundServers:
    """Return the processes that serve vLLM on a port of plain HTTP, each with its `[targets.engine]` options.

    The options have the command line of a process that the service, as the user flettner, cannot read.
    Processes in containers are left to the docker engine.
    """
    return FoundServers(servers=await asyncio.to_thread(_find_servers))


def _find_servers() -> list[tuple[Server, Mapping[str, object]]]:
    return [server for process in procfs.processes() for server in _server_of(process)]


def _server_of(process: procfs.Process) -> Iterator[tuple[Server, Mapping[str, object]]]:
    argv = procfs.words(process.pid)
    address = find_listen_address(argv) if is_vllm_server(argv) else None
    if address is None or ownership_env.is_marked(process) or _is_contained(process.pid):
        return
    with suppress(FlagError):
        server = Server(name=str(process.pid), setting=parse_setting(argv), address=str(address), ours=False)
        if procfs.listening_user(address.port) is not None:
            hidden = {"command": argv} if _is_hidden_from_the_service(process.pid) else {}
            yield server, {"serving": f"http://{address}", **hidden}


def _is_hidden_from_the_service(pid: int) -> bool:
    """Whether the service cannot read what this user reads of a process: it belongs to a third one."""
    readers = {os.geteuid()}
    with suppress(KeyError):
        readers.add(pwd.getpwnam("flettner").pw_uid)
    return procfs.user_of(pid).isdisjoint(readers)


def _is_contained(pid: int) -> bool:
    with suppress(OSError):
        return bool(_CONTAINED.search(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")))
    return True
