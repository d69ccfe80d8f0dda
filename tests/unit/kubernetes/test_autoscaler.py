"""Which autoscalers act against a rollout."""

import pytest

from actuators.kubernetes.autoscaler import Autoscaler
from actuators.kubernetes.workload import Workload
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.manifests import autoscaler, container, deployment

OFF = {"selectPolicy": "Disabled"}


def conflict(document: Json, replicas: int) -> str:
    body = {"kind": "Deployment"} | deployment("vllm", container("tiny"), replicas=replicas)
    return Autoscaler.parse(document).find_conflict(Workload.parse(body))


@pytest.mark.parametrize(
    ("least", "behavior", "replicas", "acts"),
    [
        (1, {}, 1, False),
        (1, {}, 2, True),
        (1, {"scaleUp": OFF, "scaleDown": OFF}, 2, False),
        (1, {"scaleDown": OFF}, 2, True),
        (2, {"scaleUp": OFF, "scaleDown": OFF}, 2, True),
    ],
)
def test_one_acts_unless_there_is_one_pod_or_it_is_disabled(
    least: int, behavior: Json, replicas: int, *, acts: bool
) -> None:
    document = autoscaler("vllm", least=least)
    document["spec"]["behavior"] = behavior

    assert bool(conflict(document, replicas)) is acts


def test_one_of_keda_acts_on_a_single_pod_too() -> None:
    found = conflict(autoscaler("vllm", least=1, keda=True), replicas=1)

    assert found.startswith("KEDA's ScaledObject vllm would start pods of vllm")
