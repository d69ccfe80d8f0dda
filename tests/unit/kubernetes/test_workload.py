"""The vLLM container of a Deployment: its flags, and changes that leave the rest as it was written."""

import pytest

from flettner.actuators.kubernetes.preflight import describe_other_gpus, obstacles
from flettner.actuators.kubernetes.workload import Workload
from flettner.vllm_facts.errors import FlagError
from tests.support.kubernetes.manifests import controlled_by
from tests.support.kubernetes_documents import deployment


def test_args_alone_are_flags_of_the_images_entrypoint() -> None:
    workload = Workload.parse(deployment())

    assert workload.serve.setting == {"model": "m", "max_num_seqs": 8}
    assert workload.serve.port == 8000
    assert workload.gpus == 1
    assert not workload.problem


def test_a_change_of_args_alone_adds_no_command() -> None:
    workload = Workload.parse(deployment())

    assert workload.with_setting({"model": "m", "max_num_seqs": 16}) == {
        "args": ["--model", "m", "--max-num-seqs", "16"]
    }


def test_a_command_stays_where_it_is() -> None:
    workload = Workload.parse(
        deployment(command=["vllm", "serve"], args=["m", "--port", "9000", "--max-num-seqs=8"])
    )

    assert workload.serve.port == 9000
    assert workload.with_setting({"model": "m", "max_num_seqs": 16}) == {
        "command": ["vllm", "serve"],
        "args": ["m", "--port", "9000", "--max-num-seqs=16"],
    }


def test_variables_are_read_and_stay_as_written() -> None:
    env = [{"name": "LENGTH", "value": "4096"}]
    args = ["--model", "m", "--max-model-len", "$(LENGTH)", "--max-num-seqs", "8"]
    workload = Workload.parse(deployment(args=args, env=env))

    assert workload.serve.setting["max_model_len"] == 4096
    changed = workload.with_setting({"model": "m", "max_model_len": 4096, "max_num_seqs": 16})
    assert changed == {"args": ["--model", "m", "--max-model-len", "$(LENGTH)", "--max-num-seqs", "16"]}


def test_a_variable_whose_flag_changes_is_replaced_by_the_value() -> None:
    env = [{"name": "SEQS", "value": "8"}]
    workload = Workload.parse(deployment(args=["--model", "m", "--max-num-seqs", "$(SEQS)"], env=env))

    changed = workload.with_setting({"model": "m", "max_num_seqs": 16})

    assert changed == {"args": ["--model", "m", "--max-num-seqs", "16"]}


def test_finds_the_container_beside_a_sidecar() -> None:
    workload = Workload.parse(deployment(sidecar=True))

    assert workload.container == 1
    assert workload.container_document["name"] == "server"


def test_a_shell_is_a_problem_that_is_named() -> None:
    workload = Workload.parse(deployment(command=["sh", "-c"], args=["vllm serve m | tee log"]))

    assert workload.problem
    with pytest.raises(FlagError):
        workload.with_setting({"model": "m", "max_num_seqs": 16})


@pytest.mark.parametrize(
    ("labels", "annotations", "owner"),
    [
        ({}, {}, ""),
        ({"app.kubernetes.io/managed-by": "Helm"}, {}, ""),
        ({"argocd.argoproj.io/instance": "chat"}, {}, "Argo CD"),
        ({}, {"argocd.argoproj.io/tracking-id": "chat:apps/Deployment:x"}, "Argo CD"),
        ({"kustomize.toolkit.fluxcd.io/name": "chat"}, {}, "Flux"),
    ],
)
def test_knows_the_gitops_controller(labels: dict[str, str], annotations: dict[str, str], owner: str) -> None:
    assert Workload.parse(deployment(labels=labels, annotations=annotations)).owner == owner


def test_knows_a_gitops_controller_by_its_writes() -> None:
    document = deployment()
    document["metadata"]["managedFields"] = [{"manager": "kustomize-controller"}]

    assert Workload.parse(document).owner == "Flux"


def test_the_controller_that_made_it_comes_before_gitops() -> None:
    document = deployment(labels={"argocd.argoproj.io/instance": "chat"})
    document["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "1"},
        controlled_by("serving.kserve.io/v1beta1", "InferenceService", "chat"),
    ]

    assert Workload.parse(document).owner == "InferenceService chat"


def test_the_leaders_of_a_leaderworkerset_cannot_be_adopted() -> None:
    document = deployment() | {"kind": "StatefulSet"}
    document["metadata"]["ownerReferences"] = [
        controlled_by("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "vllm")
    ]

    [problem] = obstacles(Workload.parse(document))

    assert "it belongs to the LeaderWorkerSet vllm" in problem
    assert "`flettner advise URL`" in problem


def test_of_equal_variables_the_last_counts_and_all_stay() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    workload = Workload.parse(deployment(env=env))

    assert "env" not in workload.with_setting({"model": "m", "max_num_seqs": 16})


def test_pods_of_a_selector_with_expressions_are_found_by_all_their_labels() -> None:
    document = deployment()
    document["spec"]["selector"] = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
    workload = Workload.parse(document)

    assert workload.selector == {"app": "vllm", "team": "search"}
    assert "matchExpressions" in "".join(obstacles(workload))


def test_a_paused_deployment_is_an_obstacle() -> None:
    document = deployment()
    document["spec"]["paused"] = True

    assert "paused" in "".join(obstacles(Workload.parse(document)))


def test_a_layout_for_other_gpus_than_the_pods_limit_is_refused_with_the_reason() -> None:
    workload = Workload.parse(deployment())

    assert describe_other_gpus(workload, {"tensor_parallel_size": 4}).startswith(
        "this layout needs 4 GPUs, and a pod of vllm has a limit of 1, which flettner does not change"
    )
    assert not describe_other_gpus(workload, {"max_num_seqs": 16})


@pytest.mark.parametrize(
    ("limit", "in_bytes"), [("64Gi", 64 * 2**30), ("64G", 64 * 10**9), ("", None), ("many", None)]
)
def test_the_memory_that_a_pod_may_take(limit: str, in_bytes: int | None) -> None:
    document = deployment()
    container = document["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"memory": limit} if limit else {}}

    assert Workload.parse(document).memory_limit == in_bytes
