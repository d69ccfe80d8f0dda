"""A real cluster in place of the built programs, for the tests that need no stand-in of a node.

FLETTNER_TEST_KUBECONFIG names its kubeconfig; KUBECONFIG is never read, so that no test reaches a cluster by
accident. Each test makes a namespace of its own, whose name begins with FLETTNER_TEST_NAMESPACE, and deletes
it; nothing else is changed. The pods run the image FLETTNER_TEST_IMAGE, whose `vllm` is the simulator.
"""

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.kubernetes import kubeconfig
from tests.support.kubernetes.api import Api
from tests.support.kubernetes.kubeconfig import Access
from tests.support.kubernetes.namespace_objects import NamespaceObjects


def borrowed_file() -> Path | None:
    """None: the tests have a cluster of their own, or none. ValueError: not all is allowed explicitly."""
    if not (file := os.environ.get("FLETTNER_TEST_KUBECONFIG")):
        return None
    if not os.environ.get("FLETTNER_TEST_NAMESPACE"):
        raise ValueError(
            f"FLETTNER_TEST_KUBECONFIG is {file}: name in FLETTNER_TEST_NAMESPACE how the namespaces begin "
            "that tests may make and delete there"
        )
    return Path(file)


class BorrowedCluster:
    """`with BorrowedCluster(file) as cluster`."""

    def __init__(self, file: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fl-borrowed-"))
        self._access = Access.read(file, self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder)

    @property
    def url(self) -> str:
        return self._access.url

    @property
    def ca(self) -> Path:
        return self._access.ca

    def api(self) -> Api:
        return Api(self.url, self._access.token, self.ca, certificate=self._access.certificate)

    def kubeconfig(self, name: str = "admin", token: str = "", namespace: str = "default") -> Path:
        """Of a ServiceAccount of a test; the account of the cluster itself is not written again."""
        assert token
        path = self.folder / f"{namespace}-{name}.kubeconfig"
        return kubeconfig.write(path, url=self.url, ca=self.ca, user=name, token=token, namespace=namespace)


class BorrowedNamespace(NamespaceObjects):
    """`async with BorrowedNamespace(cluster) as here`; its pods run on the nodes of the cluster."""

    def __init__(self, cluster: BorrowedCluster) -> None:
        self.cluster = cluster
        self.name = f"{os.environ['FLETTNER_TEST_NAMESPACE']}-{secrets.token_hex(4)}"
        self.api = cluster.api()
