"""Split a target's traffic with the Envoys of a Deployment, which serve on without the daemon."""

from flettner.actuators.envoy_deployment.options import EnvoyDeploymentOptions
from flettner.actuators.envoy_deployment.traffic import DeploymentTraffic
from flettner.agent.domain.ports import Site


class EnvoyDeploymentPlugin(EnvoyDeploymentOptions):
    """The traffic of `kind = "envoy_deployment"`."""

    def bind(self, site: Site) -> DeploymentTraffic:
        return DeploymentTraffic(self, site)


plugin = EnvoyDeploymentPlugin
