"""etcd, kube-apiserver and kube-controller-manager of one test session."""

import contextlib
import json
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.kubernetes import certificates, kubeconfig
from tests.support.kubernetes.api import Api
from tests.support.kubernetes.network import Network
from tests.support.kubernetes.programs import programs

# Without heartbeats of nodes: a node is lost when its Ready condition says so (see `Node.lose`).
CONTROLLERS = (
    "deployment,replicaset,statefulset,endpoint,endpointslice,garbagecollector,namespace,disruption,"
    "nodelifecycle,podgc,serviceaccount,csrcleaner,ephemeral-volume,pvc-protection,"
    "resourcequota,horizontalpodautoscaling"
)
EVICTION_S = 2  # from a node's loss to the deletion of its pods; 300 in a cluster with default settings

_GATE = "GenericEphemeralVolume"  # on by default since 1.21, unknown to newer ones
_READY_WITHIN_S = 60.0
_AUDIT = {  # one line for each request, when it comes
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}


class Cluster:
    """`with Cluster() as cluster`: ready. `kubeconfig`: of an administrator.

    Raises FileNotFoundError where the programs are missing.
    """

    def __init__(self) -> None:
        self._programs = programs()
        self.folder = Path(tempfile.mkdtemp(prefix="fl-kubernetes-"))
        self._token = secrets.token_hex(16)
        self._running: list[subprocess.Popen[bytes]] = []
        self.network: Network

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self.folder)
            self.network = Network()
            undo.callback(self.network.close)
            undo.callback(self._stop)
            self._start()
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    @property
    def url(self) -> str:
        return f"https://{self.network.address}:6443"

    @property
    def ca(self) -> Path:
        return self.folder / "apiserver.crt"

    def api(self) -> Api:
        """All rights."""
        return Api(self.url, self._token, self.ca)

    def kubeconfig(self, name: str = "admin", token: str = "", namespace: str = "default") -> Path:
        """It can be read from every pod, too."""
        path, token = self.folder / f"{namespace}-{name}.kubeconfig", token or self._token
        return kubeconfig.write(path, url=self.url, ca=self.ca, user=name, token=token, namespace=namespace)

    def requests(self, namespace: str) -> list[str]:
        """The requests of the ServiceAccounts of a namespace so far, such as "list pods"."""
        user = f"system:serviceaccount:{namespace}:"
        audited = map(json.loads, (self.folder / "audit.log").read_text().splitlines())
        return [
            f"{entry['verb']} {entry['objectRef']['resource']}"
            for entry in audited
            if entry["user"]["username"].startswith(user)
        ]

    def stop_api(self) -> None:
        """The API server goes away; pods and what etcd holds stay."""
        self._running[1].kill()
        self._running[1].wait()

    def start_api(self) -> None:
        """Only from the main thread: the kernel kills the program when the thread ends that started it."""
        self._running[1] = self._run("kube-apiserver", *self._api_flags())

    def _start(self) -> None:
        address = self.network.address
        certificates.serving(self.folder, "apiserver", address)
        certificates.signing(self.folder, "accounts")
        (self.folder / "audit.json").write_text(json.dumps(_AUDIT))
        (self.folder / "tokens.csv").write_text(f'{self._token},admin,admin,"system:masters"\n')
        self._running.append(
            self._run(
                "etcd",
                "--data-dir",
                str(self.folder / "etcd"),
                f"--listen-client-urls=http://{address}:2379",
                f"--advertise-client-urls=http://{address}:2379",
                f"--listen-peer-urls=http://{address}:2380",
                f"--initial-advertise-peer-urls=http://{address}:2380",
                f"--initial-cluster=default=http://{address}:2380",
            )
        )
        self._running.append(self._run("kube-apiserver", *self._api_flags()))
        self.wait()
        self._running.append(self._run("kube-controller-manager", *self._controller_flags()))

    def _api_flags(self) -> tuple[str, ...]:
        address, folder = self.network.address, self.folder
        return (
            f"--etcd-servers=http://{address}:2379",
            f"--bind-address={address}",
            "--secure-port=6443",
            f"--tls-cert-file={folder}/apiserver.crt",
            f"--tls-private-key-file={folder}/apiserver.key",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC",
            f"--service-account-key-file={folder}/accounts.pub",
            f"--service-account-signing-key-file={folder}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.99.0.0/16",
            "--allow-privileged=true",
            f"--audit-policy-file={folder}/audit.json",
            f"--audit-log-path={folder}/audit.log",
            "--disable-admission-plugins=ServiceAccount",  # pods here hold no token
            *self._gates("kube-apiserver"),
            f"--default-not-ready-toleration-seconds={EVICTION_S}",
            f"--default-unreachable-toleration-seconds={EVICTION_S}",
        )

    def _controller_flags(self) -> tuple[str, ...]:
        return (
            f"--kubeconfig={self.kubeconfig()}",
            *self._by_version(),
            "--leader-elect=false",
            "--secure-port=0",
            "--node-monitor-grace-period=24h",
            "--node-monitor-period=1s",
            "--horizontal-pod-autoscaler-sync-period=1s",  # it has no metrics here: it keeps to its limits
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        )

    def _by_version(self) -> tuple[str, ...]:
        """1.20 opens a port without TLS unless told not to; from 1.29 on pods are evicted by a controller."""
        said = self._help("kube-controller-manager")
        evicts = ",taint-eviction-controller" if "taint-eviction-controller" in said else ""
        port = ("--port=0",) if " --port " in said else ()
        return (f"--controllers={CONTROLLERS}{evicts}", *port, *self._gates("kube-controller-manager"))

    def _gates(self, program: str) -> tuple[str, ...]:
        return (f"--feature-gates={_GATE}=true",) if _GATE in self._help(program) else ()

    def _help(self, program: str) -> str:
        command = [str(self._programs / program), "--help"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def _run(self, program: str, *flags: str) -> subprocess.Popen[bytes]:
        """With a log in the folder; killed by the kernel if this process dies."""
        with (self.folder / f"{program}.log").open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", self._programs / program, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
            )

    def wait(self) -> None:
        """Until the API server is ready."""
        trust = ssl.create_default_context(cafile=str(self.ca))
        asked = urllib.request.Request(  # noqa: S310 - https
            f"{self.url}/readyz", headers={"Authorization": f"Bearer {self._token}"}
        )
        end_s = time.monotonic() + _READY_WITHIN_S
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(asked, timeout=5, context=trust) as got:  # noqa: S310
                if got.status == 200:
                    return
            ended = [process for process in self._running if process.poll() is not None]
            assert not ended, f"{ended[0].args!r} ended: {self.logs()}"
            assert time.monotonic() < end_s, (
                f"the API server is not ready after {_READY_WITHIN_S:g} s: {self.logs()}"
            )
            time.sleep(0.1)

    def logs(self) -> str:
        """The last lines of each program."""
        files = sorted(self.folder.glob("*.log"))
        return "".join(f"\n{file.name}: {file.read_text(errors='replace')[-2000:]}" for file in files)

    def _stop(self) -> None:
        for process in reversed(self._running):
            process.kill()
            process.wait()
