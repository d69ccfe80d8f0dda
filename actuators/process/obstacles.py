"""Why no server can be started from a command line, with the fix each."""

from pathlib import Path

from flettner.actuators.host.origin import Origin
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import parse_setting

_UNSUPPORTED = ("uds", "ssl_certfile", "ssl_keyfile")  # flags of servers that speak no plain HTTP on a port


def find_obstacles(origin: Origin) -> list[str]:
    try:
        setting = parse_setting(origin.argv)
    except FlagError as error:
        return [f"command: {error}"]
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
