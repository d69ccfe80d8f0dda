"""flettner-docker-proxy: `run` the proxy, or `check` its policy (and whether it fits running containers)."""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog
from aiohttp import ClientSession, UnixConnector

from flettner.primitives.sockets import is_listening
from flettner.tools.docker_proxy.create import create_reasons
from flettner.tools.docker_proxy.engine import EngineSocket
from flettner.tools.docker_proxy.errors import Absent, EngineSilent, PolicyError, Refused
from flettner.tools.docker_proxy.fields import FieldContext
from flettner.tools.docker_proxy.mounts import host_files
from flettner.tools.docker_proxy.policy import ProxyPolicy, load_policy
from flettner.tools.docker_proxy.proxy import serving
from flettner.tools.docker_proxy.request_filter import RequestFilter
from flettner.tools.docker_proxy.strict_json import Json

DEFAULT = Path("/etc/flettner/docker-proxy.toml")
_log = structlog.get_logger("docker_proxy")


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0: no fault; 1: `check` found objections; 2: the policy or the socket is invalid."""
    arguments = _parser().parse_args(argv)
    try:
        policy = load_policy(arguments.config)
        if arguments.command == "check":
            return asyncio.run(_check(policy, arguments.containers))
        _configure_logs()
        with listening(Path(policy.socket.path), Path(policy.socket.engine)) as listener:
            asyncio.run(_run(listener, arguments.config, policy))
    except PolicyError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flettner-docker-proxy", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run", help="serve on the policy's socket until SIGTERM; SIGHUP reloads the policy"
    )
    check = commands.add_parser("check", help="check the policy and report its faults")
    check.add_argument("containers", nargs="*", help="running containers whose twins the policy should admit")
    for command in (run, check):
        command.add_argument("-c", "--config", type=Path, default=DEFAULT, help=f"policy file ({DEFAULT})")
    return parser


def _configure_logs() -> None:
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.BoundLogger,
    )


@contextlib.contextmanager
def listening(path: Path, engine: Path) -> Iterator[socket.socket]:
    """Yield the bound socket, open to its user and group only, removed afterwards. Raises PolicyError."""
    if path.resolve() == engine.resolve():
        raise PolicyError(f"socket.path: {path} is the engine's own socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale_socket(path)
        before = os.umask(0o117)  # 0660 from the first instant
        try:
            listener.bind(str(path))
        except OSError as error:
            raise PolicyError(f"socket.path: cannot listen on {path}: {error.strerror or error}") from error
        finally:
            os.umask(before)
        yield listener
        path.unlink(missing_ok=True)
    finally:
        listener.close()


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket of a dead proxy. Raises PolicyError if a process answers on it."""
    if not path.is_socket():
        return
    if is_listening(path):
        raise PolicyError(f"socket.path: a process already listens on {path}")
    path.unlink(missing_ok=True)


async def _check(policy: ProxyPolicy, containers: Sequence[str]) -> int:
    wrong = False
    async with ClientSession(connector=UnixConnector(path=policy.socket.engine)) as session:
        for name in containers:
            problems = await objections(
                name, FieldContext(policy=policy, files=host_files), EngineSocket(session=session)
            )
            wrong |= bool(problems)
            for line in problems or ["a twin of it would pass"]:
                print(f"{name}: {line}")  # noqa: T201
    if not containers:
        print("the policy is well-formed")  # noqa: T201
    return int(wrong)


async def _run(listener: socket.socket, config: Path, first: ProxyPolicy) -> None:
    policy = first
    over = asyncio.Event()

    def reload() -> None:
        nonlocal policy
        try:
            fresh = load_policy(config)
        except PolicyError as error:
            _log.error("policy not reloaded", reason=str(error))
            return
        policy = fresh.model_copy(update={"socket": first.socket})  # the sockets stay until a restart
        _log.info("policy reloaded")

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload)
    for end in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(end, over.set)
    async with serving(listener, lambda: policy):
        _log.info("listening", socket=policy.socket.path, engine=policy.socket.engine)
        _notify_systemd("READY=1")
        await over.wait()
        _notify_systemd("STOPPING=1")


def _notify_systemd(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram, contextlib.suppress(OSError):
            datagram.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            datagram.send(state.encode())


# Left out by flettner when it makes a twin: identity, and what the engine fills in.
_NOT_COPIED = ("AttachStdin", "AttachStdout", "AttachStderr", "MacAddress", "OnBuild")


async def objections(name: str, context: FieldContext, engine: EngineSocket) -> list[str]:
    """Return the reasons against a twin of the container `name`, and against changing this container."""
    request_filter = RequestFilter(context=context, engine=engine)
    try:
        seen = await engine.container(name)
        inspected = await engine.described(seen.id)
    except (Absent, EngineSilent) as error:
        return [str(error)]
    reasons = [] if request_filter.is_own(seen) else [f"{seen.name} is not in the policy's containers.adopt"]
    body = twin(inspected, context)
    reasons += create_reasons(body, context)
    if not reasons:
        try:
            await request_filter.check_named_resources(body)
        except (Refused, Absent, EngineSilent) as error:
            reasons.append(str(error))
    return reasons


def twin(inspected: Json, context: FieldContext) -> Json:
    """Return a create body like flettner's, with unchanged flags."""
    config = {key: value for key, value in inspected["Config"].items() if key not in _NOT_COPIED}
    if config.get("Hostname") == inspected["Id"][:12]:
        del config["Hostname"]
    address = next(iter(context.policy.networks.publish), "")
    ports = inspected["HostConfig"].get("PortBindings") or {}
    free = {port: [{"HostIp": address, "HostPort": ""}] for port in ports}
    networks = (inspected.get("NetworkSettings") or {}).get("Networks") or {}
    ends = {name: {"Aliases": (end or {}).get("Aliases")} for name, end in networks.items()}
    return {
        **config,
        "Image": inspected["Image"],
        "Labels": {**(config.get("Labels") or {}), context.policy.containers.label: "check"},
        "HostConfig": {**inspected["HostConfig"], "PortBindings": free, "ContainerIDFile": ""},
        "NetworkingConfig": {"EndpointsConfig": ends},
    }
