"""Run vLLM servers as Docker containers: a new container is like its predecessor, except for its flags."""

from flettner.actuators.docker.engine import DockerEngine
from flettner.actuators.docker.options import DockerOptions
from flettner.actuators.docker.registry import find_unmanaged_servers
from flettner.agent.domain.ports import Site


class DockerPlugin(DockerOptions):
    """The engine of `kind = "docker"`."""

    find_unmanaged_servers = staticmethod(find_unmanaged_servers)

    def bind(self, site: Site) -> DockerEngine:
        return DockerEngine(self, site)


plugin = DockerPlugin
