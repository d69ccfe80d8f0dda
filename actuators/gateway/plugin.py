"""Split a target's traffic by the weights of an HTTPRoute, which a gateway of the cluster carries out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flettner.actuators.gateway.traffic import GatewayTraffic
from flettner.agent.domain.model import Hold
from flettner.agent.domain.ports import Site
from flettner.clients.kubernetes.options import ClusterOptions
from flettner.primitives.address import Address


@dataclass(frozen=True, kw_only=True)
class GatewayOptions(ClusterOptions):
    """The fields are the options of `[targets.traffic]`.

    `settle_s`: after a gateway has accepted a change, until no request goes where it went before. Load
    balancers of clouds take longer than gateways that run in the cluster.
    """

    counts_requests: ClassVar[bool] = False
    hold: ClassVar[Hold | None] = None
    route: str  # the name of the HTTPRoute
    rule: str = ""  # the rule's name, or its place from "0" on; empty: all rules, which have one backend then
    confirm_s: float = 10.0  # for each gateway of the route to accept a change
    settle_s: float = 5.0
    records: str = ""  # where the gateways send their access logs: "0.0.0.0:4317"; empty: they send none

    def __post_init__(self) -> None:
        if not self.route:
            raise ValueError("route is empty: name an HTTPRoute, as `kubectl get httproutes` shows it")
        if not self.confirm_s > 0 or not self.settle_s >= 0:
            raise ValueError("confirm_s must be above 0, and settle_s at least 0")
        if self.records:
            Address.parse(self.records, "records")

    @property
    def sensor_options(self) -> Mapping[str, Mapping[str, str]]:
        """The records of requests, if the gateways send any."""
        if not self.records:
            return {}
        return {
            "proxy_requests": {
                "listen": self.records,
                "route": self.route,
                "rule": self.rule,
                "namespace": self.namespace,
                "kubeconfig": self.kubeconfig,
                "context": self.context,
            }
        }

    def bind(self, site: Site) -> GatewayTraffic:
        return GatewayTraffic(
            client=self.client(),
            site=site,
            name=self.route,
            rule=self.rule,
            confirm_s=self.confirm_s,
            settle_s=self.settle_s,
        )


plugin = GatewayOptions
