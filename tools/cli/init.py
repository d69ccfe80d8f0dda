"""`flettner init`: write a commented config, in advise mode, for the vLLM servers that run on this host."""

import argparse
import asyncio
import re
import sys
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import cast

from flettner.agent.config.loader import load_config, parse_config
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model import Server
from flettner.agent.plugins import loader
from flettner.agent.plugins.installation import FoundTarget, Installer
from flettner.primitives.sockets import find_free_port
from flettner.tools.advisor.local_servers import FoundEngines, find_servers
from flettner.tools.cli.dispatch import Subparsers, add_command

SERVICE = Path("/etc/flettner")
"""A config in this folder belongs to the systemd service, whose unit sets the state directory and socket."""

NO_SERVER_FOUND = 1
_NONE_FOUND = (
    "on this host: start one and wait until it answers, run this command as its user or as root, or write a "
    "config by hand from examples/flettner.toml of the source (of the package: "
    "/usr/share/doc/flettner/flettner.toml)"
)
_SERVICE_HEAD = """\
[agent]
# state_dir = "/var/lib/flettner"   # journal, lock, the proxy's files
mode = "advise"                    # suggests only. "approve": carries out what an operator approved

[api]
# listen = "unix:/run/flettner/api.sock"   # root needs no token there
tokens_file = "tokens"             # flettner token new --tokens-file {tokens} --role operator --name YOU
"""
_OWN_HEAD = """\
[agent]
state_dir = "state"                # journal, lock, the proxy's files; beside this file
mode = "advise"                    # suggests only. "approve": carries out what an operator approved

[api]
listen = "127.0.0.1:8090"
tokens_file = "tokens"             # flettner token new --tokens-file {tokens} --role operator --name YOU
"""
_LIVE = "# with flettner's scheduler class in vLLM, limits change without a restart: docs/live-limits.md"
_TARGET = """

# {found}
[[targets]]
name = "{name}"
# gpu = "L4"                       # the model of its GPUs, where no sensor sees it; "cpu": it runs on CPUs

[targets.slo]                      # your latency objectives; without them only failures are detected
# ttft = {{ under = "500ms", share = 0.95 }}   # to the first byte of the answer, for 95 % of the requests
# itl = {{ under = "60ms", share = 0.95 }}     # mean gap between the tokens of one request

[targets.engine]
kind = "{kind}"
{options}

[targets.traffic]
listen = "{listen}"       # Envoy will listen here once the mode is not "advise"; then point clients here
"""
_FOOT = """
# Steps of a rollout, bounds of each knob, policies: examples/flettner.toml of the source (of the package:
# /usr/share/doc/flettner/flettner.toml) has every key and its default.
"""


def add_init(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "init",
        "write a first config for the vLLM servers on this host",
        "Inspects this host and what it can reach. Never overwrites a file. Exit status 1: no "
        "server was found and nothing was written.",
    )
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="file to write; default: flettner.toml, or values.yaml",
    )
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help="look for servers of this engine only; with kubernetes, FILE has the values of the Helm chart",
    )
    parser.set_defaults(run=_init)


def _init(args: argparse.Namespace) -> int:
    engine = loader.load_plugin("actuators", args.engine) if args.engine else None
    if engine is not None and not hasattr(engine, "find_unmanaged_servers"):
        raise ConfigError(f"--engine {args.engine}: this is no engine that finds servers")
    installer = cast("Installer", engine) if hasattr(engine, "make_installation") else None
    path: Path = args.config or Path(installer.installation_file if installer else "flettner.toml")
    _refuse_to_replace(path)
    servers, failures = asyncio.run(find_servers(args.engine))
    sys.stderr.writelines(f"skipped: {why}\n" for why in failures)
    if not servers:
        sys.stderr.write(f"no vLLM server found {installer.none_found if installer else _NONE_FOUND}\n")
        return NO_SERVER_FOUND
    if installer is not None:
        return _write_installation(path, installer, servers)
    write_config(path, config_text(path, servers))
    sys.stdout.writelines(f"found {_describe(kind, server)}\n" for kind, server, _ in servers)
    tokens = path.parent / "tokens"
    sys.stdout.write(f"{path}: written. Set your objectives in [targets.slo], then run:\n")
    if not tokens.exists():
        sys.stdout.write(f"  flettner token new --tokens-file {tokens} --role operator --name YOU\n")
    sys.stdout.write(f"  flettner check {path}\n")
    sys.stdout.write(f"  flettner run -c {path}\n")
    return 0


def _write_installation(path: Path, installer: Installer, servers: Sequence[FoundEngines]) -> int:
    names: list[str] = []
    targets = []
    for kind, server, options in servers:
        names.append(_name(server, names))
        description = _describe(kind, server)
        targets.append(FoundTarget(name=names[-1], description=description, server=server, options=options))
    made = installer.make_installation(targets)
    parse_config(made.config, here=Path.cwd())
    _write(path, made.text)
    sys.stdout.writelines(f"found {target.description}\n" for target in targets)
    sys.stdout.write(f"{path}: written. Set your objectives in [targets.slo], then run:\n")
    sys.stdout.writelines(f"  {step.replace('FILE', str(path))}\n" for step in made.next_steps)
    return 0


def _refuse_to_replace(path: Path) -> None:
    if path.exists():
        raise ConfigError(f"{path}: already exists and is left unchanged; name another file")


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def config_text(path: Path, servers: Sequence[FoundEngines]) -> str:
    of_service = path.absolute().parent == SERVICE
    head = _SERVICE_HEAD if of_service else _OWN_HEAD
    # A daemon of this user reads the command by itself, and with it the environment.
    own = set() if of_service else {"command"}
    tokens = path.parent / "tokens"
    text = "# flettner: targets and limits. `flettner check` validates this file.\n"
    text += head.format(tokens=tokens)
    names: list[str] = []
    ports: list[int] = []
    for kind, server, options in servers:
        names.append(_name(server, names))
        ports.append(_free_port(ports))
        text += _TARGET.format(
            found=_describe(kind, server),
            name=names[-1],
            kind=kind,
            options="\n".join(
                [*(f"{key} = {dumps(options[key])}" for key in options if key not in own), *_note(kind)]
            ),
            listen=f"127.0.0.1:{ports[-1]}",
        )
    return text + _FOOT


def _note(kind: str) -> tuple[str, ...]:
    """Return a line on what would save restarts, for engines that can use it."""
    return () if kind == "kubernetes" else (_LIVE,)


def write_config(path: Path, text: str) -> None:
    """Write a new file. Raises ConfigError if it cannot be written or the text is not a valid config."""
    _write(path, text)
    try:
        load_config(path)
    except ConfigError:
        path.unlink()
        raise


def _describe(kind: str, server: Server) -> str:
    model = server.setting.get("model", "an unnamed model")
    where = server.address or "an address on its own network"
    text = f"{kind} {server.name}: {model} at {where}"
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _name(server: Server, taken: Sequence[str]) -> str:
    """Return a target name made from the model's name."""
    model = str(server.setting.get("model", "")).rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:40].strip("-") or "chat"
    names = (name, *(f"{name}-{number}" for number in range(2, 1000)))
    return next(name for name in names if name not in taken)


def _free_port(taken: Sequence[int]) -> int:
    try:
        return find_free_port(range(8080, 8100), taken=taken, host="127.0.0.1")
    except OSError:
        return 8080
