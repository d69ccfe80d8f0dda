"""Find the vLLM servers of this host, each with its `[targets.engine]` options for a first config."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from actuators.docker.client import DockerClient
from actuators.docker.labels import SERVER
from actuators.docker.spec import ContainerSpec
from actuators.host import ownership_env, procfs
from actuators.process.address import listens
from agent.domain.model import Server
from vllm_facts.errors import FlagError
from vllm_facts.flags import parse_setting

DiscoveredServer = tuple[Server, Mapping[str, object]]

_PROGRAM_WORDS = 8  # of a command line: a wrapper, options of Python, then the program
_MODULE = re.compile(r"vllm\.entrypoints\.(openai|cli)\.\w+")
_CONTAINED = re.compile(r"docker|containerd|libpod|kubepods|crio|lxc")  # in a path of /proc/PID/cgroup


async def containers(host: str) -> Sequence[DiscoveredServer]:
    """Return the running ones, without our own. Raises ActError if the Docker Engine does not answer."""
    client = DockerClient(host=host)
    summaries = [one for one in await client.list_containers({}) if SERVER not in (one.get("Labels") or {})]
    inspected = await asyncio.gather(*(client.inspect(str(one["Id"])) for one in summaries))
    return [found for one in inspected if one for found in _container(one)]


def _container(one: ContainerSpec) -> Iterator[DiscoveredServer]:
    if one.state.running and serves(one.serve.argv):
        server = Server(name=one.name, setting=one.serve.setting, address=one.address, ours=False)
        yield server, {"containers": [one.name]}


def processes() -> Sequence[DiscoveredServer]:
    """Return the ones that listen on a port of plain HTTP, without our own and those in containers."""
    return [found for one in procfs.processes() for found in _process(one)]


def _process(one: procfs.Process) -> Iterator[DiscoveredServer]:
    argv = procfs.words(one.pid)
    address = listens(argv) if serves(argv) else ""
    if not address or ownership_env.is_marked(one) or _is_contained(one.pid):
        return
    with suppress(FlagError):
        server = Server(name=str(one.pid), setting=parse_setting(argv), address=address, ours=False)
        if procfs.listening_user(int(address.rpartition(":")[2])) is not None:
            yield server, {"serving": f"http://{address}"}


def serves(argv: Sequence[str]) -> bool:
    """Whether a command line is that of vLLM's HTTP server."""
    words = [word.rpartition("/")[2] for word in argv[:_PROGRAM_WORDS]]
    return ("vllm", "serve") in pairwise(words) or any(map(_MODULE.fullmatch, words))


def _is_contained(pid: int) -> bool:
    with suppress(OSError):
        return bool(_CONTAINED.search(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")))
    return True
