"""The Helm chart, and the plain manifests made from it."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from flettner.agent.config import loader
from flettner.primitives.address import UnixSocket
from tests.integration.packaging.example import EXAMPLES
from tests.support.helm import CHART, Json, manifests, of_kind

pytestmark = pytest.mark.smoke

VERSIONS = ("1.28", "1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
EVERYTHING: Mapping[str, Any] = {
    "mode": "auto",
    "imagePullSecrets": [{"name": "registry"}],
    "api": {
        "tls": {"secretName": "flettner-tls"},
        "hosts": ["flettner.example.org"],
        "trustedProxies": ["10.42.0.0/16"],
    },
    "persistence": {"storageClass": "fast"},
    "networkPolicy": {
        "enabled": True,
        "proxyFrom": [{"podSelector": {"matchLabels": {"app": "gateway"}}}],
        "egress": [{"to": [{"namespaceSelector": {}}], "ports": [{"port": 9090}]}],
    },
    "guard": {"enabled": True},
    "records": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"gateways": "yes"}}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "podAnnotations": {"example.org/a": "b"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}
WITHOUT_VOLUME: Mapping[str, Any] = {
    "persistence": {"enabled": False},
    "proxy": {"enabled": False},
    "tokens": {"secretName": ""},
}
CASES = {"default": {}, "everything": EVERYTHING, "without a volume": WITHOUT_VOLUME}
each_case = pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())


def pod_templates(documents: list[Json]) -> Iterator[Json]:
    for document in documents:
        if document["kind"] in {"Deployment", "StatefulSet", "DaemonSet", "Job"}:
            yield document["spec"]["template"]["spec"]


def config_of(documents: list[Json]) -> str:
    return str(of_kind("ConfigMap", documents)["data"]["flettner.toml"])


def test_helm_finds_nothing_to_complain_about() -> None:
    result = helm_python.lint(CHART, dict(EVERYTHING), strict=True)

    assert result["errors"] == []
    assert [message for message in result["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_plain_manifests_are_what_the_chart_renders(path: Path) -> None:
    assert path.read_text() == EXAMPLES[path](), "run python -m tests.integration.packaging.example"


@each_case
@pytest.mark.parametrize("version", VERSIONS)
def test_each_manifest_has_the_schema_of_kubernetes(values: Mapping[str, Any], version: str) -> None:
    for document in manifests(values):
        if document["apiVersion"] != "monitoring.coreos.com/v1":
            kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_are_strict() -> None:
    service = of_kind("Service", manifests())
    service["spec"]["publishNotReadyAddress"] = True

    with pytest.raises(kubernetes_validate.ValidationError, match="publishNotReadyAddress"):
        kubernetes_validate.validate(service, VERSIONS[-1], strict=True)


def test_the_newest_known_version_is_checked() -> None:
    assert kubernetes_validate.latest_version().startswith(f"{VERSIONS[-1]}.")


@each_case
def test_pods_keep_to_the_restricted_profile(values: Mapping[str, Any]) -> None:
    """The rules of https://kubernetes.io/docs/concepts/security/pod-security-standards/ for `restricted`."""
    for pod in pod_templates(manifests(values)):
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        sources = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret", "downwardAPI"}
        assert {key for volume in pod.get("volumes", ()) for key in volume if key != "name"} <= sources
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "hostPort" not in str(container.get("ports"))


@each_case
def test_the_config_is_valid(values: Mapping[str, Any]) -> None:
    documents = manifests(values)
    config = loader.parse_config(config_of(documents), here=Path("/etc/flettner"))

    daemon = next(pod_templates(documents))["containers"][0]
    mounted = [mount["mountPath"] for mount in daemon["volumeMounts"]]
    files = [
        config.state_dir,
        config.api.tokens_file,
        config.api.certificate.chain if config.api.certificate else None,
        *(listener.path for listener in config.api.listen if isinstance(listener, UnixSocket)),
    ]
    for file in filter(None, files):
        assert any(file.is_relative_to(folder) for folder in mounted), file
    ports = {port["name"]: port["containerPort"] for port in daemon["ports"]}
    assert str(config.api.health) == f"0.0.0.0:{ports['health']}"
    assert ("api" in ports) == (config.api.certificate is not None)
    proxies = values.get("api", {}).get("trustedProxies", [])
    assert [str(network) for network in config.api.trusted_proxies] == proxies


@pytest.mark.parametrize(("mode", "writes"), [("advise", False), ("approve", True), ("auto", True)], ids=str)
def test_the_role_follows_the_mode(mode: str, writes: bool) -> None:
    documents = manifests({"mode": mode})

    verbs = {verb for rule in of_kind("Role", documents)["rules"] for verb in rule["verbs"]}
    assert bool(verbs - {"get", "list", "watch"}) == writes
    assert tomllib.loads(config_of(documents))["agent"]["mode"] == mode


@each_case
def test_there_are_no_rights_on_secrets_pods_or_the_cluster(values: Mapping[str, Any]) -> None:
    documents = manifests(values)

    assert not {document["kind"] for document in documents} & {"ClusterRole", "ClusterRoleBinding"}
    for rule in of_kind("Role", documents)["rules"]:
        assert "*" not in str(rule)
        assert not set(rule["resources"]) & {"secrets", "pods/exec", "roles", "rolebindings", "nodes"}
        if "pods" in rule["resources"]:  # one of several that is to end loses its labels, and is deleted
            assert set(rule["verbs"]) in ({"get", "list", "watch"}, {"patch", "delete"})


def test_only_the_named_pull_secrets_may_be_read() -> None:
    rules = of_kind("Role", manifests({"registrySecrets": ["registry"]}))["rules"]

    (rule,) = [rule for rule in rules if "secrets" in rule["resources"]]
    assert (rule["resourceNames"], rule["verbs"]) == (["registry"], ["get"])


def test_gateways_may_send_records_only_where_that_is_wanted() -> None:
    before = manifests({"networkPolicy": {"enabled": True}})
    after = manifests({"networkPolicy": {"enabled": True}, "records": {"enabled": True}})

    [service] = [document for document in after if document["metadata"]["name"] == "flettner-records"]
    daemon = next(pod_templates(after))["containers"][0]
    [port] = [port for port in daemon["ports"] if port["name"] == service["spec"]["ports"][0]["targetPort"]]
    assert port["containerPort"] == service["spec"]["ports"][0]["port"] == 4317
    assert "4317" in str(of_kind("NetworkPolicy", after)["spec"]["ingress"])
    assert "4317" not in str(before)


def test_a_token_review_is_the_only_right_in_the_cluster_and_must_be_wanted() -> None:
    before, after = manifests(), manifests({"api": {"tokenReview": True}})

    [binding] = [document for document in after if document not in before]
    assert (binding["kind"], binding["roleRef"]["name"]) == ("ClusterRoleBinding", "system:auth-delegator")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "flettner", "namespace": "chat"}]
    kubernetes_validate.validate(binding, VERSIONS[-1], strict=True)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"mode": "approved"}, "mode"),
        ({"persistance": {"size": "5Gi"}}, "persistance"),
        ({"proxy": {"ports": ["8080"]}}, "ports"),
        ({"mode": "approve", "persistence": {"enabled": False}}, "outlive the pod"),
        ({"serviceMonitor": {"enabled": True}}, "needs api.tls.secretName"),
    ],
    ids=["mode", "unknown", "type", "volume", "tls"],
)
def test_a_wrong_value_is_named(values: Mapping[str, Any], says: str) -> None:
    with pytest.raises(helm_python.HelmError, match=says):
        manifests(values)


def test_the_schema_of_the_values_has_each_of_them() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def keys(value: Mapping[str, Any], path: str = "") -> Iterator[str]:
        for key, inner in value.items():
            yield f"{path}{key}"
            if isinstance(inner, dict) and f"{path}{key}" in typed:
                yield from keys(inner, f"{path}{key}.")

    def described(document: Mapping[str, Any], path: str = "") -> Iterator[str]:
        for key, inner in document["properties"].items():
            yield f"{path}{key}"
            if "properties" in inner:
                typed.add(f"{path}{key}")
                yield from described(inner, f"{path}{key}.")

    typed: set[str] = set()
    described_keys = set(described(schema)) - {"global"}  # every chart may get this one
    assert described_keys == set(keys(values))
