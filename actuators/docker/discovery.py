"""The containers of one target: those the config names, whatever they are called by now, and our own."""

import asyncio
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from actuators.docker import snapshots
from actuators.docker.client import DockerClient, Json
from actuators.docker.command import api_key_in, argv_of, env_of, place_in, setting_in
from actuators.docker.labels import EPOCH, LIKE, SERVER, ours
from actuators.host.origin import Origin
from actuators.host.ownership_env import epoch_in
from agent.domain.errors import FencedError
from agent.domain.model import Server
from agent.domain.ports import Site
from vllm_facts.errors import FlagError
from vllm_facts.values import Setting

COMPOSE = "com.docker.compose.project"
_ANY_HOST = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - read, not bound
_HERE = "127.0.0.1"
_LARGEST_FILE = 2**20  # bytes; flags and a key
_UP = frozenset({"running", "paused", "restarting"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundContainer:
    """One container, running or not. `server`: the name that its server goes by."""

    server: str
    ours: bool
    inspect: Json = field(repr=False)

    @property
    def id(self) -> str:
        return str(self.inspect["Id"])

    @property
    def running(self) -> bool:
        return self.inspect["State"].get("Status") in _UP

    @property
    def paused(self) -> bool:
        return bool(self.inspect["State"].get("Paused"))

    @property
    def labels(self) -> Mapping[str, str]:
        return self.inspect["Config"].get("Labels") or {}

    @property
    def like(self) -> str:
        return self.labels.get(LIKE, "") if self.ours else ""

    @property
    def epoch(self) -> int:
        return epoch_in(self.labels.get(EPOCH, "")) if self.ours else 0

    @property
    def removes_itself(self) -> bool:
        return bool(self.inspect["HostConfig"].get("AutoRemove"))

    @property
    def policy(self) -> Json:
        return dict(self.inspect["HostConfig"].get("RestartPolicy") or snapshots.NEVER)

    def seen(self) -> Server:
        """As `observe` shows it."""
        return Server(
            name=self.server,
            setting=setting_of(self.inspect),
            address=address_of(self.inspect),
            ours=self.ours,
            like=self.like,
        )


async def of_target(client: DockerClient, site: Site, names: Iterable[str]) -> dict[str, FoundContainer]:
    """By server name. Raises ActError when the Engine does not answer."""
    summaries = await client.listed(ours(site))
    inspected = await asyncio.gather(*(client.inspect(str(one["Id"])) for one in summaries))
    found: dict[str, FoundContainer] = {}
    for inspect in filter(None, inspected):
        one = FoundContainer(server=inspect["Config"]["Labels"].get(SERVER, ""), ours=True, inspect=inspect)
        if one.server not in found or one.running:
            found[one.server] = one
    for name in names:
        if (adopted := await _adopted(client, site, name)) is not None:
            found[name] = adopted
    return found


def fence(site: Site, found: Iterable[FoundContainer]) -> None:
    """Raises FencedError when a newer daemon has made or kept a container here."""
    kept = (one.epoch for one in snapshots.every(site))
    newest = max([0, *kept, *(one.epoch for one in found)])
    if newest > site.epoch:
        raise FencedError(
            f"a newer daemon (epoch {newest}) runs containers here; this one has epoch {site.epoch}"
        )


async def _adopted(client: DockerClient, site: Site, name: str) -> FoundContainer | None:
    """The one that was adopted under this name, though it be renamed; else the one that has the name."""
    kept = snapshots.read(site, name)
    inspect = await client.inspect(kept.id) if kept else None
    inspect = inspect or await client.inspect(name)
    if inspect is None or ours(site).items() <= (inspect["Config"].get("Labels") or {}).items():
        return None
    return FoundContainer(server=name, ours=False, inspect=inspect)


# What a container's inspect says of its server.


def setting_of(inspect: Json) -> Setting:
    """Without the flags of a file that cannot be read; empty where the command cannot be read."""
    for files in (files_of(inspect), None):
        with suppress(FlagError):
            return setting_in(inspect, files)
    return {}


def secrets_of(inspect: Json) -> frozenset[str]:
    """What must not be shown, wherever it turns up."""
    argv: tuple[str, ...] = ()
    with suppress(FlagError):
        argv = argv_of(inspect)
    return Origin(argv=argv, env=env_of(inspect), cwd="").secrets | {api_key_of(inspect)} - {""}


def api_key_of(inspect: Json) -> str:
    with suppress(FlagError):
        return api_key_in(inspect, files_of(inspect))
    return ""


def address_of(inspect: Json) -> str:
    """Where it is reached from this host: by a published port, the host's network, its own address; or ""."""
    try:
        _, port = place_in(inspect, files_of(inspect))
    except FlagError:
        return ""
    if inspect["HostConfig"].get("NetworkMode") == "host":
        return f"{_HERE}:{port}"
    network = inspect["NetworkSettings"]
    published = (network.get("Ports") or {}).get(f"{port}/tcp") or ()
    for binding in sorted(published, key=lambda one: ":" in one["HostIp"]):
        host = _HERE if binding["HostIp"] in _ANY_HOST else binding["HostIp"]
        return f"[{host}]:{binding['HostPort']}" if ":" in host else f"{host}:{binding['HostPort']}"
    addresses = (one.get("IPAddress") for one in (network.get("Networks") or {}).values())
    return next((f"{address}:{port}" for address in addresses if address), "")


def _text_of(path: Path, folder: Path) -> str:
    """Of a file that a container may have put there: endless, a pipe that nobody writes to, a link out.

    Raises OSError, and ValueError for what is no text file of ordinary size in the folder.
    """
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path} is not in {folder}")
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is no ordinary file")
        content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise ValueError(f"{path} is larger than {_LARGEST_FILE} bytes")
    return content.decode("utf-8")


def files_of(inspect: Json) -> Callable[[str], str | None]:
    """Reads a file of the container that the host has too: one of a mounted folder."""
    mounts = sorted(inspect.get("Mounts") or (), key=lambda one: -len(one["Destination"]))

    def read(path: str) -> str | None:
        wanted = PurePosixPath(inspect["Config"].get("WorkingDir") or "/", path)
        for mount in mounts:
            if wanted.is_relative_to(mount["Destination"]):
                with suppress(OSError, ValueError):
                    below = wanted.relative_to(mount["Destination"])
                    return _text_of(Path(mount["Source"], below), Path(mount["Source"]))
                return None
        return None

    return read
