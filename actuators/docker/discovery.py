"""Find the containers of one target: those that the config names, even if renamed, and our own."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from flettner.actuators.docker import snapshots
from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.labels import EPOCH, LIKE, SERVER, site_labels
from flettner.actuators.docker.spec import ContainerSpec, Json
from flettner.actuators.host.ownership_env import epoch_in
from flettner.actuators.vllm.engine import refuse_older_daemon
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.agent.plugins.installation import FoundServers
from flettner.vllm_facts.flag_parser import is_vllm_server

COMPOSE = "com.docker.compose.project"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundContainer:
    """One container, running or not. `server`: the name of its server."""

    server: str
    ours: bool
    spec: ContainerSpec = field(repr=False)
    asleep: bool = False  # flettner put it to sleep, and it was not started again since

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def active(self) -> bool:
        return self.spec.state.active

    @property
    def like(self) -> str:
        return self.spec.labels.get(LIKE, "") if self.ours else ""

    @property
    def epoch(self) -> int:
        return epoch_in(self.spec.labels.get(EPOCH, "")) if self.ours else 0

    @property
    def policy(self) -> Json:
        return self.spec.restart_policy

    def to_server(self) -> Server:
        """As `observe` returns it."""
        return Server(
            name=self.server,
            setting=self.spec.serve.setting,
            address=self.spec.address,
            ours=self.ours,
            like=self.like,
        )


async def find_containers(
    client: DockerClient, site: Site, names: Iterable[str]
) -> dict[str, FoundContainer]:
    """Return the containers by server name. Raises ActError if the Engine does not answer."""
    summaries = await client.list_containers(site_labels(site))
    specs = await asyncio.gather(*(client.inspect(str(one["Id"])) for one in summaries))
    found: dict[str, FoundContainer] = {}
    for spec in filter(None, specs):
        one = FoundContainer(server=spec.labels.get(SERVER, ""), ours=True, spec=spec)
        if one.server not in found or one.active:
            found[one.server] = one
    for name in names:
        if (adopted := await _adopted(client, site, name)) is not None:
            found[name] = adopted
    return {name: _with_sleep(site, one) for name, one in found.items()}


def _with_sleep(site: Site, one: FoundContainer) -> FoundContainer:
    kept = snapshots.read_snapshot(site, one.server)
    same = kept is not None and kept.id == one.id and kept.asleep == one.spec.state.started_at
    return replace(one, asleep=True) if same and one.active else one


def newest_epoch(site: Site, found: Iterable[FoundContainer]) -> int:
    """Return the newest epoch of the daemons that made or kept a container here."""
    kept = (one.epoch for one in snapshots.read_all(site))
    return max([0, *kept, *(one.epoch for one in found)])


def check_fence(site: Site, found: Iterable[FoundContainer]) -> None:
    """Raises FencedError if a newer daemon has made or kept a container here."""
    refuse_older_daemon(site, newest_epoch(site, found))


async def _adopted(client: DockerClient, site: Site, name: str) -> FoundContainer | None:
    """Return the container that was adopted under this name, even if renamed; else the one of this name."""
    kept = snapshots.read_snapshot(site, name)
    spec = await client.inspect(kept.id) if kept else None
    spec = spec or await client.inspect(name)
    if spec is None or site_labels(site).items() <= spec.labels.items():
        return None
    return FoundContainer(server=name, ours=False, spec=spec)


async def find_unmanaged_servers() -> FoundServers:
    """Return the vLLM containers of this host that flettner did not start, each with its options.

    Raises ActError if the Docker Engine does not answer.
    """
    client = DockerClient()
    summaries = [one for one in await client.list_containers({}) if SERVER not in (one.get("Labels") or {})]
    specs = await asyncio.gather(*(client.inspect(str(one["Id"])) for one in summaries))
    servers = [
        (
            Server(name=spec.name, setting=spec.serve.setting, address=spec.address, ours=False),
            {"containers": [spec.name]},
        )
        for spec in specs
        if spec and spec.state.running and is_vllm_server(spec.serve.argv)
    ]
    return FoundServers(servers=servers)
