"""The options of the docker engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flettner.actuators.vllm.engine import ServerOptions


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
