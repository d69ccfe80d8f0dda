"""What selects pods by their labels: Services, which send them traffic, and PodDisruptionBudgets."""

from collections.abc import Mapping
from contextlib import suppress

from flettner.actuators.kubernetes.workload import Workload
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import MissingError


async def find_selectors(client: KubernetesClient, workload: Workload) -> list[Mapping[str, str]]:
    """Return the selectors of the namespace as the labels that a pod of the workload needs for each.

    Raises ActError.
    """
    found = [one["spec"].get("selector") or {} for one in await client.find(kubernetes.SERVICE)]
    with suppress(MissingError):  # policy/v1 came with Kubernetes 1.21
        labels = (workload.template.get("metadata") or {}).get("labels") or {}
        budgets = await client.find(kubernetes.POD_DISRUPTION_BUDGET)
        found += [_needed_labels(one["spec"].get("selector") or {}, labels) for one in budgets]
    return found


def _needed_labels(selector: Json, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels without which the selector does not take such a pod; empty: it takes none anyway."""
    needed = dict(selector.get("matchLabels") or {})
    for one in selector.get("matchExpressions") or ():
        if one["operator"] == "In" and labels.get(one["key"]) not in one["values"]:
            return {}
        if one["operator"] in {"In", "Exists"} and one["key"] in labels:
            needed[one["key"]] = labels[one["key"]]
    return needed
