"""The options of the Envoys of a Deployment."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from flettner.actuators.shared.hold import HoldOptions
from flettner.agent.domain.model import Hold
from flettner.clients.envoy_records.pods import PORT
from flettner.clients.kubernetes.options import ClusterOptions
from flettner.primitives.address import Address
from flettner.vllm_facts.closed_routes import check_open_routes


@dataclass(frozen=True, kw_only=True)
class EnvoyDeploymentOptions(HoldOptions, ClusterOptions):
    """The fields are the options of `[targets.traffic]`."""

    counts_requests: ClassVar[bool] = True

    listen: str = "0.0.0.0:8080"
    deployment: str = "flettner-proxy"  # the Deployment of Envoys
    session_header: str = "x-session-id"  # its value decides the server; without it chance does
    open_routes: tuple[str, ...] = ()  # routes that change a server, which clients may call all the same
    report_every_s: float = 2.0
    confirm_s: float = 10.0  # how long the pods may take to put a route in force

    def __post_init__(self) -> None:
        super().__post_init__()
        listen = Address.parse(self.listen, "listen", least_port=1)
        if listen.is_loopback:
            raise ValueError(f'listen is in a pod: "0.0.0.0:8080", or "[::]:8080", not {self.listen!r}')
        if listen.port == PORT:
            raise ValueError(f"listen: the pods answer flettner at port {PORT}: choose another one")
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", self.deployment):
            raise ValueError(f"deployment must be the name of a Deployment, not {self.deployment!r}")
        if not re.fullmatch(r"[A-Za-z0-9-]+", self.session_header):
            raise ValueError(f"session_header must be the name of a header, not {self.session_header!r}")
        check_open_routes(self.open_routes)
        if not self.report_every_s > 0 or not self.confirm_s > 0:
            raise ValueError("report_every_s and confirm_s must be above 0")

    @property
    def hold(self) -> Hold | None:
        hold = super().hold
        return replace(hold, each="pod of Envoy") if hold else None

    @property
    def sensor_options(self) -> Mapping[str, Mapping[str, str]]:
        """Where the records of requests come from."""
        return {
            "proxy_requests": {
                "deployment": self.deployment,
                "namespace": self.namespace,
                "kubeconfig": self.kubeconfig,
                "context": self.context,
            }
        }
