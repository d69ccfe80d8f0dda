"""The options of the kubernetes engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flettner.actuators.kubernetes.lease import LeaseLock
from flettner.actuators.kubernetes.workload import OPTIONS, WorkloadName
from flettner.actuators.vllm.engine import ServerOptions
from flettner.agent.domain.ports import Lock
from flettner.clients.kubernetes.connection import Access, find_place
from flettner.clients.kubernetes.options import ClusterOptions


@dataclass(frozen=True, kw_only=True)
class KubernetesOptions(ServerOptions, ClusterOptions):
    """The fields are the options of `[targets.engine]`. How long a pod may take to end is in its manifest."""

    sensors: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    deployments: tuple[str, ...] = ()  # that serve already; all belong to the target
    statefulsets: tuple[str, ...] = ()  # that serve already, in place of Deployments or besides
    lease: str = "flettner"  # held while a daemon may act, so that a second one waits

    def __post_init__(self) -> None:
        for option in OPTIONS.values():
            object.__setattr__(self, option, tuple(getattr(self, option)))  # TOML has lists only
        super().__post_init__()
        names = [name.name for name in self.adopted]
        if not names or not all(names):
            raise ValueError(
                "deployments and statefulsets are empty: name what serves, as "
                "`kubectl get deployments,statefulsets` shows it"
            )
        if not self.lease:
            raise ValueError("lease is empty: name the Lease that keeps a second daemon from acting")
        if len(set(names)) != len(names):
            raise ValueError("deployments, statefulsets: each name once: it is the name of a server")

    @property
    def adopted(self) -> tuple[WorkloadName, ...]:
        return tuple(
            WorkloadName(resource, name)
            for resource, option in OPTIONS.items()
            for name in getattr(self, option)
        )

    @property
    def exclusive(self) -> tuple[tuple[str, ...], ...]:
        place = find_place(Access(self.kubeconfig, self.context, self.namespace))
        return tuple((OPTIONS[name.resource], name.name, *place) for name in self.adopted)

    def lock(self) -> Lock:
        return LeaseLock(client=self.client(), name=self.lease)
