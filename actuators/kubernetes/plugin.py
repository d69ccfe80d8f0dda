"""Run vLLM servers as Deployments or StatefulSets: a new one is like the old one, except for its flags."""

from flettner.actuators.kubernetes import installation
from flettner.actuators.kubernetes.discovery import find_unmanaged_servers
from flettner.actuators.kubernetes.engine import KubernetesEngine
from flettner.actuators.kubernetes.options import KubernetesOptions
from flettner.agent.domain.ports import Site


class KubernetesPlugin(KubernetesOptions):
    """The engine of `kind = "kubernetes"`."""

    installation_file = installation.FILE_NAME
    none_found = installation.NONE_FOUND
    find_unmanaged_servers = staticmethod(find_unmanaged_servers)
    make_installation = staticmethod(installation.make_installation)

    def bind(self, site: Site) -> KubernetesEngine:
        return KubernetesEngine(self, site)


plugin = KubernetesPlugin
