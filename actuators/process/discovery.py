"""Find the vLLM processes of this host that flettner did not start."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flettner.actuators.host import ownership_env, procfs
from flettner.actuators.process.address import find_listen_address
from flettner.agent.domain.model import Server
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import is_vllm_server, parse_setting

_CONTAINED = re.compile(r"docker|containerd|libpod|kubepods|crio|lxc")  # in a path of /proc/PID/cgroup


def find_unmanaged_servers() -> Sequence[tuple[Server, Mapping[str, object]]]:
    """The processes that serve vLLM on a port of plain HTTP, each with the `[targets.engine]` options for it.

    Processes in containers are left to the docker engine.
    """
    return [found for one in procfs.processes() for found in _server_of(one)]


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
