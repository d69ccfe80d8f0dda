"""How an operator serves without flettner after its processes: as steps, or by starting the server again."""

import re
import shlex
from collections.abc import Mapping

from flettner.actuators.host import ownership_env
from flettner.actuators.host.origin import Origin, setting_of
from flettner.actuators.host.ownership_env import MarkedProcess
from flettner.actuators.host.process_group import spawn
from flettner.actuators.host.procfs import words
from flettner.actuators.process.address import choose_port
from flettner.actuators.process.adopted import find_listener
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from flettner.primitives.address import Address
from flettner.redaction import mask
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import edit_flags

_READ = re.compile(
    r"(?:VLLM|CUDA|NVIDIA|HF|HUGGING_FACE|NCCL|TORCH|TORCHINDUCTOR|PYTORCH|OMP|HIP|ROCR|TRITON|FLASHINFER|LMCACHE)_"
)
"""Variables of vLLM and its libraries."""


def describe_way_back(running: Mapping[str, MarkedProcess], origin: Origin, home: Address) -> list[str]:
    """The command in force, and what to end after it serves. `home`: the operator's address.

    With the variables that its server reads; a secret one is named, with *** as its value.
    """
    blue = running[min(running)]
    variables = [f"{name}={value}" for name, value in sorted(origin.env.items()) if _READ.match(name)]
    command = mask(shlex.join([*variables, *origin.command(setting_of(blue.argv), port=home.port)]))
    return [
        f"start your server with the flags in force, in {origin.cwd or 'its folder'}: {command}",
        f"when it serves, point the clients at {home}",
        *(
            f"end flettner's server {name}: kill {server.process.pid}"
            for name, server in sorted(running.items())
        ),
    ]


def find_or_start_home(site: Site, origin: Origin, home: Address, ports: tuple[int, int]) -> MarkedProcess:
    """Start `origin`, a server in force, at `home` without marks, or find it as an earlier call started it.

    It listens on another port of `ports` if that of `home` is taken. Raises ActError.
    """
    name = f"{site.target}-r0"
    if (listener := find_listener(home)) and words(listener.pid) == _command(origin, home.port):
        return MarkedProcess(name=name, process=listener, argv=tuple(words(listener.pid)), epoch=0)
    argv = _command(origin, choose_port(ports, (), home.port))
    ownership_env.prepare_folder(site)
    log = ownership_env.log_of(site, name)
    try:
        started = spawn(argv, env=ownership_env.without_marks(origin.env), cwd=origin.cwd, log=log)
    except OSError as error:
        raise ActError(f"your own server cannot be started: {error}") from error
    return MarkedProcess(name=name, process=started, argv=tuple(argv), epoch=0)


def _command(origin: Origin, port: int) -> list[str]:
    try:
        return edit_flags(origin.argv, {"port": port})
    except FlagError as error:
        raise ActError(f"the command of the server in force cannot be changed: {error}") from error
