"""The autoscalers of a workload: a HorizontalPodAutoscaler, which KEDA makes, too.

A rollout takes the pods of a workload one after the other, down to 0. An autoscaler of Kubernetes gives them
back up to its minReplicas, and beyond by its metrics; it leaves a workload alone that is at 0. KEDA starts
also that one again. Green is no target of it and keeps its number of pods.

It is read as autoscaling/v1, which every Kubernetes serves. What later versions have besides, the API server
writes into annotations there: `spec.behavior` as JSON, with the capitals of Go's names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from json import loads
from typing import Self

from flettner.actuators.kubernetes.workload import Workload
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.documents import Json

_BEHAVIOR = "autoscaling.alpha.kubernetes.io/behavior"
_KEDA = "ScaledObject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaler:
    name: str
    least: int  # pods
    disabled: bool  # it changes no number between its least and its most
    scaled_object: str  # of KEDA; empty: people made the autoscaler

    @classmethod
    def parse(cls, document: Json) -> Self:
        metadata, spec = document["metadata"], document["spec"]
        behavior = loads((metadata.get("annotations") or {}).get(_BEHAVIOR, "{}").lower())
        rules = [behavior.get(way) or {} for way in ("scaleup", "scaledown")]
        owners = metadata.get("ownerReferences") or ()
        return cls(
            name=metadata["name"],
            least=spec.get("minReplicas", 1),
            disabled=all(rule.get("selectpolicy") == "disabled" for rule in rules),
            scaled_object=next((owner["name"] for owner in owners if owner["kind"] == _KEDA), ""),
        )

    def find_conflict(self, workload: Workload, keep: int = 1) -> str:
        """Return why it would act against a rollout, with the fix; empty: it would not.

        `keep`: how many of its pods the rollout leaves.
        """
        if self.scaled_object:
            return (
                f"KEDA's ScaledObject {self.scaled_object} would start pods of {workload.name} that the "
                'rollout ends: set its annotation autoscaling.keda.sh/paused to "true" for the rollout'
            )
        if not keep or workload.usual_replicas == 1 or (self.disabled and self.least <= 1):
            return ""
        return (
            f"the HorizontalPodAutoscaler {self.name} would give {workload.name} the pods back that the "
            "rollout takes one by one: for the rollout, set its minReplicas to 1, and selectPolicy to "
            "Disabled in behavior.scaleUp and behavior.scaleDown"
        )


async def find_conflict(client: KubernetesClient, workloads: Sequence[Workload], keep: int = 1) -> str:
    """Return how an autoscaler would act against a rollout of these; empty: none would. Raises ActError.

    `keep`: how many pods of each the rollout leaves.
    """
    targets = {
        (workload.resource.__name__, workload.name): workload for workload in workloads if not workload.ours
    }
    if not targets:
        return ""
    for document in await client.find(kubernetes.HORIZONTAL_POD_AUTOSCALER):
        target = document["spec"]["scaleTargetRef"]
        workload = targets.get((target["kind"], target["name"]))
        if workload and (conflict := Autoscaler.parse(document).find_conflict(workload, keep)):
            return conflict
    return ""
