"""A StatefulSet as a pattern for green, and what keeps it from being one."""

from pathlib import Path

import pytest

from flettner.actuators.kubernetes.green import make_deployment
from flettner.actuators.kubernetes.preflight import obstacles
from flettner.actuators.kubernetes.statefulset import count_turns
from flettner.actuators.kubernetes.workload import Workload
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.manifests import claim, container, statefulset

SITE = Site(target="chat", state_dir=Path("/state/chat"), epoch=3)
GREEN = Server(name="chat-r2", setting={"model": "tiny", "max_num_seqs": 16}, like="vllm")
MOUNT = {"name": "models", "mountPath": "/models"}


def of(*args: str, spec: Json | None = None, **of_container: object) -> Workload:
    server = container(*args, **of_container)  # type: ignore[arg-type]
    return Workload.parse(statefulset("vllm", server, claims=[claim("models", "100Gi")], **(spec or {})))


def test_green_has_no_field_of_a_statefulset_and_claims_of_its_own() -> None:
    blue = of("tiny", volumeMounts=[MOUNT], spec={"replicas": 2, "podManagementPolicy": "Parallel"})

    spec = make_deployment(SITE, GREEN, blue, [])["spec"]

    assert spec.keys() == {"replicas", "revisionHistoryLimit", "selector", "template"}
    [volume] = spec["template"]["spec"]["volumes"]
    assert volume["name"] == "models"
    assert volume["ephemeral"]["volumeClaimTemplate"]["spec"] == claim("models", "100Gi")["spec"]


def test_a_claim_takes_the_place_of_a_volume_with_its_name() -> None:
    blue = of("tiny", volumeMounts=[MOUNT])
    blue.template["spec"]["volumes"] = [{"name": "models", "emptyDir": {}}, {"name": "shm", "emptyDir": {}}]

    spec = make_deployment(SITE, GREEN, blue, [])["spec"]["template"]["spec"]

    assert [(volume["name"], "ephemeral" in volume) for volume in spec["volumes"]] == [
        ("shm", False),
        ("models", True),
    ]


def test_a_model_on_a_claim_that_green_has_not_is_an_obstacle() -> None:
    [obstacle] = obstacles(of("/models/llama", volumeMounts=[MOUNT]))

    assert obstacle == (
        "model /models/llama is on the claim models of each pod, and green's claims begin empty: fill it by "
        "an init container, or use one claim for all pods"
    )
    assert obstacles(of("/models-of-all/llama", volumeMounts=[MOUNT])) == ()


def test_an_init_container_that_fills_the_claim_is_none() -> None:
    body = statefulset("vllm", container("/models/llama", volumeMounts=[MOUNT]), claims=[claim("models")])
    body["spec"]["template"]["spec"]["initContainers"] = [{"name": "download", "volumeMounts": [MOUNT]}]

    assert obstacles(Workload.parse(body)) == ()


@pytest.mark.parametrize("value", ["1", "true"])
def test_a_server_that_may_not_download_cannot_fill_a_new_claim(value: str) -> None:
    [obstacle] = obstacles(of("tiny", volumeMounts=[MOUNT], env=[{"name": "HF_HUB_OFFLINE", "value": value}]))

    assert "HF_HUB_OFFLINE" in obstacle


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}}, "partition"),
        ({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}, ""),
        ({"updateStrategy": {"type": "OnDelete"}}, ""),
    ],
)
def test_a_partition_is_an_obstacle(spec: Json, says: str) -> None:
    problems = obstacles(of("tiny", spec=spec))

    assert len(problems) == bool(says)
    assert says in "".join(problems)


def test_pods_that_are_older_than_the_template_are_an_obstacle() -> None:
    body = statefulset("vllm", container("tiny"), updateStrategy={"type": "OnDelete"})
    body["status"] = {"replicas": 1, "updatedReplicas": 0}

    assert "delete them" in "".join(obstacles(Workload.parse(body)))


@pytest.mark.parametrize(
    ("args", "env"),
    [
        (("tiny", "--nnodes", "2"), []),
        (
            ("tiny",),
            [
                {
                    "name": "RANK",
                    "valueFrom": {
                        "fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}
                    },
                }
            ],
        ),
    ],
    ids=["nodes", "ordinal"],
)
def test_pods_that_form_one_engine_are_an_obstacle(args: tuple[str, ...], env: list[Json]) -> None:
    assert "one engine is one pod" in "".join(obstacles(of(*args, env=env)))


def test_ordered_pods_start_and_end_one_after_the_other() -> None:
    ordered = of("tiny", spec={"replicas": 3, "podManagementPolicy": "OrderedReady"})
    parallel = of("tiny", spec={"replicas": 3, "podManagementPolicy": "Parallel"})

    assert (count_turns(ordered), count_turns(parallel)) == (3, 1)
