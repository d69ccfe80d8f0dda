"""The vLLM servers of this host, and the flags that one of them runs with."""

import asyncio
import socket
from collections.abc import Awaitable, Collection, Mapping
from contextlib import suppress
from typing import Protocol, cast
from urllib.parse import urlsplit

from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.plugins import loader
from flettner.agent.plugins.installation import FoundServers
from flettner.primitives.address import Address, is_loopback
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import edit_flags
from flettner.vllm_facts.shell_command.serve_command import ServeCommand, parse_command

FoundEngines = tuple[str, Server, Mapping[str, object]]


class Finder(Protocol):
    """An engine that can list the servers on this host."""

    def find_unmanaged_servers(self) -> Awaitable[FoundServers]:
        """Raises ActError if the host cannot be inspected."""
        ...


async def find_servers(
    only: str | None = None, *, of_clusters: bool = True
) -> tuple[list[FoundEngines], list[str]]:
    """The servers found, each address once, with the kind of the engine; and what was skipped.

    `of_clusters`: also of engines that are installed into what they manage, which are asked over the network.
    """
    servers: list[FoundEngines] = []
    failures: list[str] = []
    for kind in (only,) if only else loader.list_plugins("actuators"):
        engine = loader.load_plugin("actuators", kind)
        if not hasattr(engine, "find_unmanaged_servers"):
            continue
        if not of_clusters and hasattr(engine, "make_installation"):
            continue
        try:
            here = await cast("Finder", engine).find_unmanaged_servers()
        except ActError as error:
            failures.append(f"{kind}: {error.why}")
            continue
        failures += [f"{kind}: {why}" for why in here.skipped]
        addresses = {server.address for _, server, _ in servers}
        servers += [
            (kind, server, options)
            for server, options in here.servers
            if not server.address or server.address not in addresses
        ]
    return servers, failures


def read_command(url: str) -> tuple[ServeCommand, str] | None:
    """The command of the server of this host that listens there, and whose it is: "process 655".

    None if the address is not of this host, or its server does not show its command.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:
        return None  # the error of the observation names the URL
    try:
        ips = {str(info[4][0]) for info in socket.getaddrinfo(host, port)}
    except OSError:
        return None
    for kind, server, _ in asyncio.run(find_servers(of_clusters=False))[0]:
        if server.address and _is_reached_at(Address.parse(server.address), ips, port):
            with suppress(FlagError):
                return _command_of(server), f"{kind} {server.name}"
    return None


def _is_reached_at(address: Address, ips: Collection[str], port: int) -> bool:
    """Whether one of the IPs leads to a server at `address`: its own, as of a container, or one of this host.

    A server at the loopback address may listen on all others of this host, too: what it says of itself is
    where this host reaches it.
    """
    if address.port != port:
        return False
    return address.host in ips or (is_loopback(address.host or "127.0.0.1") and any(map(_is_own, ips)))


def _is_own(ip: str) -> bool:
    """Whether this host has the IP: only then can a socket be bound to it."""
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM) as own:
        try:
            own.bind((ip, 0))
        except OSError:
            return False
    return True


def _command_of(server: Server) -> ServeCommand:
    flags = dict(server.setting)
    model = flags.pop("model", None)
    return parse_command(edit_flags(["vllm", "serve", *([str(model)] if model else [])], flags))
