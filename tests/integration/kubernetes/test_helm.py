"""The chart's life on a real API server by Helm itself: install, upgrade, uninstall, and install again."""

import asyncio
import base64
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helm_python
import pytest

from tests.support.helm import CHART
from tests.support.kubernetes.engines import CLAIM, names, serve
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.proxy import PROXY
from tests.support.rig import flettner, until

pytestmark = pytest.mark.timeout(400)

KINDS = (
    "configmaps",
    "deployments",
    "horizontalpodautoscalers",
    "leases",
    "networkpolicies",
    "persistentvolumeclaims",
    "poddisruptionbudgets",
    "rolebindings",
    "roles",
    "secrets",
    "serviceaccounts",
    "services",
    "statefulsets",
)
MADE_BY_KUBERNETES = {"configmaps kube-root-ca.crt", "serviceaccounts default"}


def chart_of(here: Namespace, folder: Path) -> Path:
    """A copy of the chart that this older API server takes, whose pods run from here, with a kubeconfig."""
    shutil.copytree(CHART, folder)
    changes = {
        "Chart.yaml": {'kubeVersion: ">=1.21.0-0"\n': ""},  # the tests also run on 1.20
        "templates/daemon.yaml": {
            "          env:\n": _lines(
                f"          command: [{sys.executable}, -m, flettner]",
                "          args: [run, -c, /etc/flettner/flettner.toml]",
                "          env:",
                "            - {name: KUBECONFIG, value: /kube/config}",
            ),
            "          volumeMounts:\n": _lines(
                "          volumeMounts:", "            - {name: kube, mountPath: /kube}"
            ),
            "      volumes:\n": _lines(
                "      volumes:", "        - {name: kube, secret: {secretName: kubeconfig}}"
            ),
        },
        "templates/proxy.yaml": {
            "apiVersion: policy/v1\n": f"apiVersion: {here.policy}\n",
            "/opt/flettner/bin/python3": sys.executable,
            "-proxy]\n          ports:\n": _lines(
                f"-proxy, --kubeconfig, {kubeconfig_of(here)}, --leave-s, '2',",
                "            --state-dir, /run/flettner-proxy/$(POD)]",
                "          env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]",
                "          ports:",
            ),
        },
    }
    for name, replaced in changes.items():
        text = (folder / name).read_text()
        for old, new in replaced.items():
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        (folder / name).write_text(text)
    return folder


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def kubeconfig_of(here: Namespace) -> Path:
    return here.cluster.folder / f"{here.name}-{PROXY}.kubeconfig"


async def give_tokens(here: Namespace) -> None:
    """The pods of these tests get the token of the chart's ServiceAccounts by a file."""
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    files = {}
    for name in ("flettner", PROXY):
        made = await here.api.create(here.path("serviceaccounts", f"{name}/token"), asked)
        files[name] = here.cluster.kubeconfig(name, made["status"]["token"], here.name)
    config = json.loads(files["flettner"].read_text())
    cluster = config["clusters"][0]["cluster"]  # the pod has a /tmp of its own
    cluster["certificate-authority-data"] = encoded(Path(cluster.pop("certificate-authority")).read_text())
    await create_secret(here, "kubeconfig", "config", json.dumps(config))


async def create_secret(here: Namespace, name: str, key: str, text: str) -> None:
    await here.create("secrets", {"metadata": {"name": name}, "data": {key: encoded(text)}})


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def objects(here: Namespace) -> set[str]:
    """All of the namespace but what Kubernetes makes, and pods and endpoints, which follow other objects."""
    all_names = {f"{kind} {name}" for kind in KINDS for name in await names(here, kind)}
    return {
        entry for entry in all_names - MADE_BY_KUBERNETES if not entry.startswith("secrets sh.helm.release")
    }


class Helm:
    """Helm's own code, as the commands `helm install`, `helm upgrade` and `helm uninstall` call it."""

    def __init__(self, here: Namespace, chart: Path) -> None:
        self._here, self._chart = here, chart

    async def install(self, values: Mapping[str, Any]) -> str:
        return await asyncio.to_thread(self._apply, "install", values)

    async def upgrade(self, values: Mapping[str, Any]) -> str:
        return await asyncio.to_thread(self._apply, "upgrade", values)

    def _apply(self, action: str, values: Mapping[str, Any]) -> str:
        with self._config() as config:
            done = getattr(config, action)(self._chart, "flettner", dict(values))
        return str(done["status"])

    async def uninstall(self) -> None:
        def act() -> None:
            with self._config() as config:
                config.uninstall("flettner")

        await asyncio.to_thread(act)

    def _config(self) -> helm_python.Config:
        path = self._here.cluster.kubeconfig(namespace=self._here.name)
        return helm_python.Config(kubeconfig_path=path, namespace=self._here.name)


async def verbs(here: Namespace) -> set[str]:
    return {verb for rule in (await here.get("roles", "flettner"))["rules"] for verb in rule["verbs"]}


async def test_what_helm_installs_it_upgrades_and_removes_but_for_the_journal(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await serve(here)
    await create_secret(here, "flettner-tokens", "tokens", "")
    helm = Helm(here, chart_of(here, tmp_path / "chart"))
    values = {"persistence": CLAIM}
    of_people = await objects(here) | {"secrets kubeconfig"}

    installed = await helm.install(values)
    await give_tokens(here)
    await here.available("flettner")
    advised = await verbs(here)
    assert installed == "deployed"
    assert not advised & {"create", "patch", "delete"}

    upgraded = await helm.upgrade(values | {"mode": "approve"})
    await here.until("deployments", PROXY, lambda document: document["status"].get("availableReplicas") == 2)
    assert upgraded == "deployed"
    assert {"create", "patch", "delete"} <= await verbs(here)

    config = tmp_path / "flettner.toml"
    config.write_text((await here.get("configmaps", "flettner"))["data"]["flettner.toml"])
    [service] = [name for name in await names(here, "services") if name.startswith("flettner-vllm-")]
    await helm.uninstall()
    left = {"persistentvolumeclaims flettner"}
    made = {"leases flettner", "configmaps flettner-proxy-chat", f"services {service}"}
    await until(lambda: objects(here), (of_people | left | made).__eq__, "the end of what Helm installed")

    monkeypatch.setenv("KUBECONFIG", str(here.cluster.kubeconfig(namespace=here.name)))
    status, said = await flettner("detach", str(config))
    assert status == 0, said
    assert await objects(here) == of_people | left
    assert (await here.get("deployments", "vllm"))["status"]["availableReplicas"] == 1

    claim = (await here.get("persistentvolumeclaims", "flettner"))["metadata"]["uid"]
    assert await helm.install(values) == "deployed"
    assert (await here.get("persistentvolumeclaims", "flettner"))["metadata"]["uid"] == claim
