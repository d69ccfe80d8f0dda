"""The patch of a change does to the manifest what flettner would do, and nothing else."""

import pytest
import yaml

from flettner.actuators.kubernetes.manifest_patch import make_patch
from flettner.actuators.kubernetes.workload import Workload
from flettner.vllm_facts.values import Setting
from tests.support.kubernetes.manifests import controlled_by
from tests.support.kubernetes.memory.patches import PatchError, apply
from tests.support.kubernetes_documents import deployment

ARGS = {
    "replaced": (["--model", "m", "--max-num-seqs", "8"], {"model": "m", "max_num_seqs": 16}),
    "with an equals sign": (["--model=m", "--max-num-seqs=8"], {"model": "m", "max_num_seqs": 16}),
    "added": (["--model", "m"], {"model": "m", "max_num_seqs": 16}),
    "removed": (["--model", "m", "--max-num-seqs", "8", "--enforce-eager"], {"model": "m"}),
    "several": (
        ["--enforce-eager", "--max-num-seqs", "8", "--model", "m", "--block-size", "16"],
        {"model": "m", "max_num_seqs": 16, "block_size": 32, "max_model_len": 512},
    ),
}


@pytest.mark.parametrize(("args", "setting"), ARGS.values(), ids=ARGS)
def test_the_patched_manifest_has_the_changed_flags(args: list[str], setting: Setting) -> None:
    document = deployment(args=args)
    workload = Workload.parse(document)

    patched = apply(document, yaml.safe_load(make_patch(workload, setting)))

    assert Workload.parse(patched).serve.setting == setting
    wanted = deployment(args=workload.with_setting(setting)["args"])
    assert patched["spec"]["template"] == wanted["spec"]["template"]


def test_a_change_says_what_it_changes_and_tests_what_it_replaces() -> None:
    workload = Workload.parse(deployment())

    assert make_patch(workload, {"model": "m", "max_num_seqs": 16}) == (
        "# Deployment vllm, container server: max_num_seqs 8 -> 16\n"
        "- op: test\n  path: /spec/template/spec/containers/0/args/3\n  value: '8'\n"
        "- op: replace\n  path: /spec/template/spec/containers/0/args/3\n  value: '16'\n"
    )


def test_the_patch_of_an_object_that_a_controller_writes_says_where_the_change_belongs() -> None:
    document = deployment()
    document["metadata"]["ownerReferences"] = [
        controlled_by("production-stack.vllm.ai/v1alpha1", "VLLMRuntime", "chat")
    ]

    patch = make_patch(Workload.parse(document), {"model": "m", "max_num_seqs": 16})

    assert "# VLLMRuntime chat writes it: make the change there" in patch


def test_another_manifest_is_not_patched() -> None:
    patch = yaml.safe_load(make_patch(Workload.parse(deployment()), {"model": "m", "max_num_seqs": 16}))

    with pytest.raises(PatchError):
        apply(deployment(args=["--model", "m", "--max-num-seqs", "12"]), patch)


def test_no_change_has_no_patch() -> None:
    assert make_patch(Workload.parse(deployment()), {"model": "m", "max_num_seqs": 8}) == ""


def test_a_secret_is_in_no_patch() -> None:
    args = ["--model", "m", "--api-key", "sk-secret", "--max-num-seqs", "8"]
    workload = Workload.parse(deployment(args=args))

    patch = make_patch(workload, {**workload.serve.setting, "max_num_seqs": 16})

    assert "'16'" in patch
    assert "sk-secret" not in patch


def test_a_flag_of_a_config_map_is_overridden_on_the_command_line() -> None:
    """vLLM prefers the command line to its --config file."""
    document = deployment()
    document["spec"]["template"]["spec"]["containers"][0]["args"] = ["tiny", "--config", "/etc/vllm.yaml"]
    blue = Workload.parse(document, {"/etc/vllm.yaml": "max-num-seqs: 8\n"}.get)

    text = make_patch(blue, {**blue.serve.setting, "max_num_seqs": 16})

    patch = yaml.safe_load(text)
    assert text.splitlines()[1] == "# max_num_seqs: vLLM takes the flag, not the value in its --config file"
    words = [str(operation["value"]) for operation in patch if operation["op"] == "add"]
    assert blue.serve.setting["max_num_seqs"] == 8
    assert sorted(words) == ["--max-num-seqs", "16"]
