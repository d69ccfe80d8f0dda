"""`trimtab init`: a first config for the vLLM servers that run here, with comments, in advisory mode."""

import argparse
import asyncio
import re
import socket
import sys
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from json import dumps
from pathlib import Path
from typing import Protocol, cast

from agent.cli.dispatch import Subparsers
from agent.config.loader import load
from agent.domain.errors import ActError, ConfigError
from agent.domain.model import Server
from agent.plugins import loader

SERVICE = Path("/etc/trimtab")
"""A config in this folder is the service's: its state and its socket are where the unit has them."""

NOTHING_FOUND = 1
_SERVICE_HEAD = """\
[agent]
# state_dir = "/var/lib/trimtab"   # journal, lock, the proxy's files
mode = "advise"                    # only says what it would do. "approve": does what a person approved

[api]
# listen = "unix:/run/trimtab/api.sock"   # root needs no token there
tokens_file = "tokens"             # trimtab token new --tokens-file {tokens} --role operator --name YOU
"""
_OWN_HEAD = """\
[agent]
state_dir = "state"                # journal, lock, the proxy's files; beside this file
mode = "advise"                    # only says what it would do. "approve": does what a person approved

[api]
listen = "127.0.0.1:8090"
tokens_file = "tokens"             # trimtab token new --tokens-file {tokens} --role operator --name YOU
"""
_TARGET = """

# {found}
[[targets]]
name = "{name}"

[targets.slo]                      # what you promise your users: without it only disasters are seen
# ttft = {{ under = "500ms", share = 0.95 }}   # to the first byte of the answer, for 95 % of the requests
# itl = {{ under = "60ms", share = 0.95 }}     # mean gap between the tokens of one request

[targets.engine]
kind = "{kind}"
{options}

[targets.traffic]
listen = "{listen}"       # Envoy will listen here once the mode is not "advise"; then point clients here
"""
_FOOT = """
# Steps of a rollout, bounds of each knob, policies: examples/trimtab.toml has every key and its default.
"""


class Finder(Protocol):
    """An engine that can look around: what runs on this host, each with the engine's options for it."""

    def found_here(self) -> Awaitable[Sequence[tuple[Server, Mapping[str, object]]]]:
        """Raises ActError when it cannot look."""
        ...


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "init",
        help="write a first config for the vLLM servers of this host",
        description="Looks at this host's processes and containers. Never overwrites a file. Exit status 1: "
        "no server was found, and nothing written.",
    )
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        default=Path("trimtab.toml"),
        metavar="FILE",
        help="trimtab.toml if none is named",
    )
    parser.set_defaults(run=_init)


def _init(args: argparse.Namespace) -> int:
    path: Path = args.config
    if path.exists():
        raise ConfigError(f"{path}: is there already, and is left as it is: name another file")
    found, blind = asyncio.run(look())
    sys.stderr.writelines(f"not looked at: {why}\n" for why in blind)
    if not found:
        sys.stderr.write(
            "no vLLM server was found here: start one, or run this as its user or as root; "
            "by hand: examples/trimtab.toml\n"
        )
        return NOTHING_FOUND
    write(path, text_of(path, found))
    sys.stdout.writelines(f"found {_said(kind, server)}\n" for kind, server, _ in found)
    tokens = path.parent / "tokens"
    sys.stdout.write(f"{path}: written. Say what you promise in [targets.slo], then:\n")
    if not tokens.exists():
        sys.stdout.write(f"  trimtab token new --tokens-file {tokens} --role operator --name YOU\n")
    sys.stdout.write(f"  trimtab check {path}\n")
    return 0


FoundEngines = tuple[str, Server, Mapping[str, object]]


async def look() -> tuple[list[FoundEngines], list[str]]:
    """What every engine finds, by its kind, and what could not be looked at. One address is found once."""
    found: list[FoundEngines] = []
    blind: list[str] = []
    for kind in loader.names("actuators"):
        engine = loader.load("actuators", kind)
        if not hasattr(engine, "found_here"):
            continue
        try:
            here = await cast("Finder", engine).found_here()
        except ActError as error:
            blind.append(f"{kind}: {error.why}")
            continue
        known = {server.address for _, server, _ in found}
        found += [(kind, *one) for one in here if not one[0].address or one[0].address not in known]
    return found, blind


def text_of(path: Path, found: Sequence[FoundEngines]) -> str:
    head = _SERVICE_HEAD if path.absolute().parent == SERVICE else _OWN_HEAD
    tokens = path.parent / "tokens"
    text = "# trimtab: what it watches and how far it may go. `trimtab check` says whether it would work.\n"
    text += head.format(tokens=tokens)
    names: list[str] = []
    ports: list[int] = []
    for kind, server, options in found:
        names.append(_name(server, names))
        ports.append(_free_port(ports))
        text += _TARGET.format(
            found=_said(kind, server),
            name=names[-1],
            kind=kind,
            options="\n".join(f"{key} = {dumps(value)}" for key, value in options.items()),
            listen=f"127.0.0.1:{ports[-1]}",
        )
    return text + _FOOT


def write(path: Path, text: str) -> None:
    """As a new file. ConfigError when it cannot be, or the text would not be a config."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        load(path)
    except ConfigError:
        path.unlink()
        raise


def _said(kind: str, server: Server) -> str:
    model = server.setting.get("model", "a model that its command line does not name")
    where = server.address or "an address that only its own network reaches"
    one = f"{kind} {server.name}: {model} at {where}"
    return "".join(sign if sign.isprintable() else "?" for sign in one)


def _name(server: Server, taken: Sequence[str]) -> str:
    """Of the model, as a target may be called."""
    model = str(server.setting.get("model", "")).rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:40].strip("-") or "chat"
    return next(one for one in (name, *(f"{name}-{n}" for n in range(2, 1000))) if one not in taken)


def _free_port(taken: Sequence[int]) -> int:
    for port in range(8080, 8100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in taken:
                return port
    return 8080
