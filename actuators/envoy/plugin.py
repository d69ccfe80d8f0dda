"""Split a target's traffic with Envoy, which keeps serving and drops green if the daemon is dead."""

from flettner.actuators.envoy.options import EnvoyOptions
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.ports import Site


class EnvoyPlugin(EnvoyOptions):
    """The traffic of `kind = "envoy"`."""

    def bind(self, site: Site) -> EnvoyTraffic:
        return EnvoyTraffic(self, site)


plugin = EnvoyPlugin
