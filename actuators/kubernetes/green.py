"""Make the Deployment of a new server: like its predecessor, except for flags, image and variables.

The labels that a Service, a disruption budget, or the old workload selects pods by are left out of green's
pods: else green would get traffic past the proxy, and would count as a pod of the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy

from flettner.actuators.kubernetes.labels import (
    LIKE,
    REPLICAS,
    SERVER,
    UPGRADED,
    object_name,
    pod_labels,
    server_labels,
    service_labels,
)
from flettner.actuators.kubernetes.statefulset import add_claims
from flettner.actuators.kubernetes.upgrade import change_container, describe_names
from flettner.actuators.kubernetes.workload import Workload
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import MissingError

_KEPT_SPEC = ("minReadySeconds", "progressDeadlineSeconds", "strategy")


def make_deployment(
    site: Site, server: Server, pattern: Workload, selectors: Sequence[Mapping[str, str]]
) -> Json:
    """Return the Deployment of `server`. `selectors`: see `find_selectors`. Raises FlagError."""
    template = deepcopy(pattern.template)
    metadata = template.setdefault("metadata", {})
    copied_labels, _ = keep_labels(pattern, selectors)
    metadata["labels"] = {
        **copied_labels,
        **server_labels(site, server.name),
        **service_labels(site, server.name),
    }
    metadata.pop("creationTimestamp", None)
    add_claims(template, pattern)
    changed = change_container(pattern, server.setting, server.start)
    template["spec"]["containers"][pattern.container] |= changed
    annotations = {SERVER: server.name, LIKE: server.like}
    if server.start:
        annotations[UPGRADED] = describe_names(server.start)
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


def keep_labels(
    pattern: Workload, selectors: Iterable[Mapping[str, str]]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the pod labels that green keeps, and the keys of those it must not have."""
    labels = dict((pattern.template.get("metadata") or {}).get("labels") or {})
    dropped = {"pod-template-hash", *pattern.selector}
    copied = {key: value for key, value in labels.items() if key not in dropped}
    for selector in selectors:
        if selector and selector.items() <= copied.items():
            dropped |= selector.keys()
            copied = {key: value for key, value in copied.items() if key not in dropped}
    return copied, tuple(sorted(dropped & labels.keys()))


async def find_selectors(client: KubernetesClient, workload: Workload) -> list[Mapping[str, str]]:
    """Return the selectors of the namespace as the labels that a pod of the workload needs for each.

    Raises ActError.
    """
    selectors = [service["spec"].get("selector") or {} for service in await client.find(kubernetes.SERVICE)]
    with suppress(MissingError):  # policy/v1 came with Kubernetes 1.21
        labels = (workload.template.get("metadata") or {}).get("labels") or {}
        budgets = await client.find(kubernetes.POD_DISRUPTION_BUDGET)
        selectors += [_needed_labels(budget["spec"].get("selector") or {}, labels) for budget in budgets]
    return selectors


def _needed_labels(selector: Json, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels without which the selector does not take such a pod; empty: it takes none anyway."""
    needed = dict(selector.get("matchLabels") or {})
    for expression in selector.get("matchExpressions") or ():
        if expression["operator"] == "In" and labels.get(expression["key"]) not in expression["values"]:
            return {}
        if expression["operator"] in {"In", "Exists"} and expression["key"] in labels:
            needed[expression["key"]] = labels[expression["key"]]
    return needed
