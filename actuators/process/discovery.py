"""Find the vLLM processes of this host that flettner did not start."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from flettner.actuators.host import ownership_env, procfs
from flettner.actuators.process.address import find_listen_address
from flettner.agent.domain.model import Server
from flettner.agent.plugins.installation import FoundServers
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import is_vllm_server, parse_setting

_CONTAINED = re.compile(r"docker|containerd|libpod|kubepods|crio|lxc")  # in a path of /proc/PID/cgroup


async def find_unmanaged_servers() -> FoundServers:
    """Return the processes that serve vLLM on a port of plain HTTP, each with its `[targets.engine]` options.

    Processes in containers are left to the docker engine.
    """
    return FoundServers(servers=await asyncio.to_thread(_find_servers))


def _find_servers() -> list[tuple[Server, Mapping[str, object]]]:
    return [server for process in procfs.processes() for server in _server_of(process)]


def _server_of(one: procfs.Process) -> Iterator[tuple[Server, Mapping[str, object]]]:
    argv = procfs.words(one.pid)
    address = find_listen_address(argv) if is_vllm_server(argv) else None
    if address is None or ownership_env.is_marked(one) or _is_contained(one.pid):
        return
    with suppress(FlagError):
        server = Server(name=str(one.pid), setting=parse_setting(argv), address=str(address), ours=False)
        if procfs.listening_user(address.port) is not None:
            yield server, {"serving": f"http://{address}"}


def _is_contained(pid: int) -> bool:
    with suppress(OSError):
        return bool(_CONTAINED.search(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")))
    return True
