"""The options that say which cluster and namespace a plugin works in."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # its import takes half a second, which plugins without a cluster do not need
    from flettner.clients.kubernetes.client import KubernetesClient


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """Fields of the table of a plugin that works with the whole cluster."""

    kubeconfig: str = ""  # a file; empty: the pod's service account, else KUBECONFIG, else ~/.kube/config
    context: str = ""  # of the kubeconfig; empty: its current one

    def client(self) -> "KubernetesClient":
        from flettner.clients.kubernetes.client import KubernetesClient  # noqa: PLC0415 - as above

        return KubernetesClient(kubeconfig=self.kubeconfig, context=self.context)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(AccessOptions):
    """Fields of the table of a plugin that works in a namespace."""

    namespace: str = ""  # empty: that of the pod flettner runs in, or of the kubeconfig's context

    def client(self) -> "KubernetesClient":
        from flettner.clients.kubernetes.client import KubernetesClient  # noqa: PLC0415 - as above

        return KubernetesClient(kubeconfig=self.kubeconfig, context=self.context, namespace=self.namespace)
