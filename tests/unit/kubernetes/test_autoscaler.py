"""Which autoscalers act against a rollout."""

import json

import pytest

from flettner.actuators.kubernetes.autoscaler import Autoscaler
from flettner.actuators.kubernetes.workload import Workload
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.manifests import autoscaler, container, deployment

OFF = {"SelectPolicy": "Disabled", "Policies": None, "StabilizationWindowSeconds": 0}


def conflict(document: Json, replicas: int, keep: int = 1) -> str:
    body = {"kind": "Deployment"} | deployment("vllm", container("tiny"), replicas=replicas)
    return Autoscaler.parse(document).find_conflict(Workload.parse(body), keep)


@pytest.mark.parametrize(
    ("least", "behavior", "replicas", "acts"),
    [
        (1, {}, 1, False),
        (1, {}, 2, True),
        (1, {"ScaleUp": OFF, "ScaleDown": OFF}, 2, False),
        (1, {"ScaleUp": {"SelectPolicy": "Max"}, "ScaleDown": OFF}, 2, True),
        (1, {"ScaleUp": None, "ScaleDown": OFF}, 2, True),
        (2, {"ScaleUp": OFF, "ScaleDown": OFF}, 2, True),
    ],
)
def test_one_acts_unless_there_is_one_pod_or_it_is_disabled(
    least: int, behavior: Json, replicas: int, *, acts: bool
) -> None:
    document = autoscaler("vllm", least=least)
    written = json.dumps(behavior)  # as version v1 of the API has it
    document["metadata"]["annotations"] = {"autoscaling.alpha.kubernetes.io/behavior": written}

    assert bool(conflict(document, replicas)) is acts


@pytest.mark.parametrize("keep", [0, 1])
def test_one_of_keda_acts_on_a_single_pod_too(keep: int) -> None:
    problem = conflict(autoscaler("vllm", least=1, keda=True), replicas=1, keep=keep)

    assert problem.startswith("KEDA's ScaledObject vllm would start pods of vllm")


def test_one_of_kubernetes_leaves_a_workload_alone_that_ends() -> None:
    assert not conflict(autoscaler("vllm", least=2), replicas=2, keep=0)
