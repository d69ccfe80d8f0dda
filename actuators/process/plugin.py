"""Run vLLM servers as plain processes of this host, each in a session of its own that outlives the daemon."""

from flettner.actuators.process.adopted import find_unmanaged_servers
from flettner.actuators.process.engine import ProcessEngine
from flettner.actuators.process.options import ProcessOptions
from flettner.agent.domain.ports import Site


class ProcessPlugin(ProcessOptions):
    """The engine of `kind = "process"`."""

    find_unmanaged_servers = staticmethod(find_unmanaged_servers)

    def bind(self, site: Site) -> ProcessEngine:
        return ProcessEngine(self, site)


plugin = ProcessPlugin
