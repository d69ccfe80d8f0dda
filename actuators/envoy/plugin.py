"""Split a target's traffic with Envoy, which keeps serving and drops green if the daemon is dead."""

from dataclasses import dataclass

from flettner.actuators.envoy.options import EnvoyOptions
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.ports import Site


@dataclass(frozen=True, kw_only=True)
class Envoy(EnvoyOptions):
    def bind(self, site: Site) -> EnvoyTraffic:
        return EnvoyTraffic(self, site)


plugin = Envoy
