"""Run vLLM servers as Docker containers: a new one is like the one it replaces, except for its flags."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flettner.actuators.docker import discovery
from flettner.actuators.docker.engine import DockerEngine
from flettner.actuators.vllm.engine import ServerOptions
from flettner.agent.domain.ports import Site
from flettner.agent.plugins.installation import FoundServers


@dataclass(frozen=True, kw_only=True)
class DockerOptions(ServerOptions):
    """The fields are the options of `[targets.engine]`."""

    sensors: ClassVar[Mapping[str, tuple[str, ...]]] = {"docker_events": ("host", "containers")}
    containers: tuple[str, ...] = ()  # names of the containers that serve already; all belong to the target
    host: str = ""  # "unix:///run/flettner/docker.sock"; empty: DOCKER_HOST, else Docker's own socket
    publish: str = "127.0.0.1"  # the address of this host on which new servers are reached

    def __post_init__(self) -> None:
        object.__setattr__(self, "containers", tuple(self.containers))  # TOML has lists only
        super().__post_init__()
        if not self.containers or not all(self.containers):
            raise ValueError("containers is empty: name what serves, as `docker ps` shows it: ['vllm']")
        if len(set(self.containers)) != len(self.containers):
            raise ValueError("containers: each name once")

    @property
    def exclusive(self) -> tuple[tuple[str, ...], ...]:
        return tuple(("containers", name, self.host) for name in self.containers)

    def bind(self, site: Site) -> DockerEngine:
        return DockerEngine(self, site)

    @staticmethod
    async def find_unmanaged_servers() -> FoundServers:
        """Return the containers that serve on this host, for a first config. Raises ActError."""
        return FoundServers(servers=await discovery.find_unmanaged_servers(host=""))


plugin = DockerOptions
