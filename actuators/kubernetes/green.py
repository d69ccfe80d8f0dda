"""Make the Deployment and the Service of a new server: like the one that it replaces, except for flags.

The labels that a Service, a disruption budget, or the old workload selects pods by are left out of green's
pods: else green would get traffic past the proxy, and would count as a pod of the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy

from flettner.actuators.kubernetes.labels import (
    DEPLOYMENT,
    LIKE,
    REPLICAS,
    SERVER,
    object_name,
    pod_labels,
    server_labels,
    service_labels,
)
from flettner.actuators.kubernetes.statefulset import add_claims
from flettner.actuators.kubernetes.workload import Workload
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.clients.kubernetes.documents import Json

_KEPT_SPEC = ("minReadySeconds", "progressDeadlineSeconds", "strategy")


def make_deployment(
    site: Site, server: Server, pattern: Workload, selectors: Sequence[Mapping[str, str]]
) -> Json:
    """Return the Deployment of `server`. `selectors`: see `find_selectors`. Raises FlagError."""
    template = deepcopy(pattern.template)
    metadata = template.setdefault("metadata", {})
    kept, _ = keep_labels(pattern, selectors)
    metadata["labels"] = {
        **kept,
        **server_labels(site, server.name),
        **service_labels(site, server.name),
    }
    metadata.pop("creationTimestamp", None)
    add_claims(template, pattern)
    template["spec"]["containers"][pattern.container] |= pattern.with_setting(server.setting)
    annotations = {SERVER: server.name, LIKE: server.like}
    if server.replicas < pattern.usual_replicas:  # of a canary: how many the server is to have
        annotations[REPLICAS] = str(pattern.usual_replicas)
    spec = {key: deepcopy(value) for key, value in pattern.document["spec"].items() if key in _KEPT_SPEC}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": object_name(site, server.name),
            "labels": server_labels(site, server.name),
            "annotations": annotations,
        },
        "spec": {
            **spec,
            "replicas": server.replicas,
            "revisionHistoryLimit": 0,
            "selector": {"matchLabels": pod_labels(site, server)},
            "template": template,
        },
    }


def make_service(site: Site, server: Server, workload: Workload) -> Json:
    """Return the headless Service of a server: its name resolves to the pods of `workload` that are ready."""
    port = workload.serve.port
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": object_name(site, server.name),
            "labels": server_labels(site, server.name),
            "annotations": {SERVER: server.name, DEPLOYMENT: workload.name, LIKE: server.like},
        },
        "spec": {
            "clusterIP": "None",
            "selector": service_labels(site, server.name) if workload.ours else dict(workload.selector),
            "ports": [{"name": "http", "port": port, "targetPort": port, "protocol": "TCP"}],
        },
    }


def keep_labels(
    pattern: Workload, selectors: Iterable[Mapping[str, str]]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the pod labels that green keeps, and the keys of those it must not have."""
    labels = dict((pattern.template.get("metadata") or {}).get("labels") or {})
    dropped = {"pod-template-hash", *pattern.selector}
    kept = {key: value for key, value in labels.items() if key not in dropped}
    for selector in selectors:
        if selector and selector.items() <= kept.items():
            dropped |= selector.keys()
            kept = {key: value for key, value in kept.items() if key not in dropped}
    return kept, tuple(sorted(dropped & labels.keys()))
