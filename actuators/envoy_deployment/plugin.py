"""Split a target's traffic with the Envoys of a Deployment, which serve on without the daemon."""

from dataclasses import dataclass

from flettner.actuators.envoy_deployment.options import EnvoyDeploymentOptions
from flettner.actuators.envoy_deployment.traffic import DeploymentTraffic
from flettner.agent.domain.ports import Site


@dataclass(frozen=True, kw_only=True)
class EnvoyDeployment(EnvoyDeploymentOptions):
    def bind(self, site: Site) -> DeploymentTraffic:
        return DeploymentTraffic(self, site)


plugin = EnvoyDeployment
