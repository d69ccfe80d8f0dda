"""A workload with another image or other variables: as its upgrade says, and otherwise as it was written."""

from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from flettner.actuators.kubernetes.green import make_deployment
from flettner.actuators.kubernetes.image_registry import split_image
from flettner.actuators.kubernetes.labels import UPGRADED
from flettner.actuators.kubernetes.manifest_patch import make_patch
from flettner.actuators.kubernetes.pods import Pod
from flettner.actuators.kubernetes.upgrade import (
    change_container,
    pin_by_pods,
    resolve_upgrade,
    upgraded,
)
from flettner.actuators.kubernetes.workload import Workload
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.clients.kubernetes.client import Reader
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.values import Setting
from tests.support.kubernetes.memory.patches import apply
from tests.support.kubernetes_documents import deployment, pod

DIGEST = f"sha256:{'3' * 64}"
PINNED = f"vllm/vllm-openai:v0.33.0@{DIGEST}"
SETTING: Setting = {"model": "m", "max_num_seqs": 8}
SECRET = {"name": "TOKEN_FILE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
ENV: list[Any] = [{"name": "A", "value": "1"}, SECRET, {"name": "B", "value": "$(A)"}]
NO_READER = cast("Reader", None)  # an image with a digest asks nobody


def workload(**more: Any) -> Workload:  # noqa: ANN401
    return Workload.parse(deployment(env=ENV, **more))


def test_the_image_and_variables_change_and_nothing_else() -> None:
    fields = change_container(workload(), SETTING, {"image": PINNED, "env.A": "2", "env.C": "3"})

    changed = [{"name": "A", "value": "2"}, *ENV[1:], {"name": "C", "value": "3"}]
    assert fields == {"image": PINNED, "env": changed, "args": ["--model", "m", "--max-num-seqs", "8"]}


@pytest.mark.parametrize(
    ("start", "env"),
    [
        ({"env.A": None}, ENV[1:]),
        ({"env.TOKEN_FILE": "/f"}, [ENV[0], {"name": "TOKEN_FILE", "value": "/f"}, ENV[2]]),
        ({"env.NONE": None}, ENV),
    ],
    ids=["unset", "in place of a reference", "unset already"],
)
def test_a_variable(start: Setting, env: list[object]) -> None:
    assert upgraded(workload(), start).container_document["env"] == env


def test_an_upgrade_is_made_once() -> None:
    start: Setting = {"image": PINNED, "env.A": "2", "env.B": None}
    first = upgraded(workload(), start)

    assert upgraded(first, start).document == first.document


def test_a_digest_that_a_promotion_has_written_stays() -> None:
    written = upgraded(workload(), {"image": PINNED})

    assert upgraded(written, {"image": "vllm/vllm-openai:v0.33.0"}).image == PINNED


def test_an_image_whose_entry_point_is_not_known_needs_a_command() -> None:
    with pytest.raises(FlagError, match="write `command` into the manifest first"):
        upgraded(workload(), {"image": f"ghcr.io/acme/llm@{DIGEST}"})

    assert upgraded(workload(command=["vllm", "serve"]), {"image": f"ghcr.io/acme/llm@{DIGEST}"}).image


def test_green_says_what_upgrades_have_set_and_a_later_green_gets_it_too(tmp_path: Path) -> None:
    site = Site(target="chat", state_dir=tmp_path, epoch=1)
    start = {"image": PINNED, "env.A": None}
    server = Server(name="chat-r1", setting=SETTING, like="vllm", start=start)

    made = make_deployment(site, server, workload(), [])

    assert made["metadata"]["annotations"][UPGRADED] == "env.A image"
    assert Workload.parse({**made, "spec": made["spec"]}).start == start


def test_what_a_person_has_changed_since_counts() -> None:
    newer = deployment(env=ENV, annotations={UPGRADED: "image env.A env.TOKEN_FILE"})

    assert Workload.parse(newer).start == {"image": "vllm/vllm-openai:v0.32.0", "env.A": "1"}


def test_the_image_of_a_manifest_that_gitops_writes_shows_that_the_patch_was_committed() -> None:
    env = [{"name": "VLLM_A", "value": "1"}, {"name": "VLLM_API_KEY", "value": "hunter2"}, *ENV]
    labels = {"argocd.argoproj.io/instance": "chat"}

    start = Workload.parse(deployment(env=env, labels=labels)).start

    assert start == {"image": "vllm/vllm-openai:v0.32.0", "env.VLLM_A": "1"}


def test_the_patch_for_git_has_the_image_the_variables_and_the_flags() -> None:
    document = deployment(env=ENV)
    start = {"image": PINNED, "env.A": None}

    patch = make_patch(Workload.parse(document), {"model": "m", "max_num_seqs": 16}, start)

    assert f"# Deployment vllm, container server: image -> {PINNED}, env.A -> unset, max_num_seqs 8" in patch
    patched = Workload.parse(apply(document, yaml.safe_load(patch)))
    assert (patched.image, patched.serve.setting["max_num_seqs"]) == (PINNED, 16)
    assert patched.container_document["env"] == ENV[1:]


@pytest.mark.parametrize(
    ("image_ids", "expected"),
    [
        ([f"docker.io/vllm/vllm-openai@{DIGEST}"] * 2, PINNED),
        ([f"x@{DIGEST}", f"x@sha256:{'4' * 64}"], PINNED.partition("@")[0]),
        ([""], PINNED.partition("@")[0]),
        ([], PINNED.partition("@")[0]),
    ],
    ids=["the same", "two", "not started", "no pod"],
)
def test_a_promotion_pins_what_the_pods_of_green_run(image_ids: list[str], expected: str) -> None:
    documents = [pod() for _ in image_ids]
    for document, image_id in zip(documents, image_ids, strict=True):
        document["status"]["containerStatuses"][0]["imageID"] = image_id

    pods = [Pod.parse(document, "server") for document in documents]

    assert pin_by_pods("vllm/vllm-openai:v0.33.0", pods) == expected


async def test_flags_are_migrated_to_the_release_in_the_tag() -> None:
    args = ["--model", "m", "--cuda-graph-sizes", "4"]
    setting: Setting = {"model": "m", "cuda_graph_sizes": 4}

    result = await resolve_upgrade(
        NO_READER, workload(args=args), {"image": PINNED, "env.A": "2"}, setting, "0.12.0"
    )

    assert result.resolved == {
        "image": ("vllm/vllm-openai:v0.32.0", PINNED),
        "env.A": ("1", "2"),
        "cuda_graph_sizes": (4, None),
        "cudagraph_capture_sizes": (None, 4),
    }
    assert result.setting == {"model": "m", "cudagraph_capture_sizes": 4}
    assert "vLLM 0.12.0 → 0.33.0, by the tag" in result.notes


@pytest.mark.parametrize(
    ("image", "version", "note"),
    [
        (
            f"vllm/vllm-openai:nightly@{DIGEST}",
            "0.32.0",
            "vLLM 0.32.0 → unknown, as the tag names no release",
        ),
        (PINNED, "", "vLLM of an unknown version → 0.33.0: the flags were not compared"),
    ],
)
async def test_an_unknown_release_is_said(image: str, version: str, note: str) -> None:
    result = await resolve_upgrade(NO_READER, workload(), {"image": image}, SETTING, version)

    assert any(note in each for each in result.notes)
    assert result.setting == SETTING


async def test_other_containers_with_the_image_and_replaced_references_are_notes() -> None:
    document = deployment(env=ENV)
    fetch = {"name": "fetch", "image": "vllm/vllm-openai:v0.32.0"}
    document["spec"]["template"]["spec"]["initContainers"] = [fetch]
    start = {"image": PINNED, "env.TOKEN_FILE": "/f"}

    result = await resolve_upgrade(NO_READER, Workload.parse(document), start, SETTING, "0.32.0")

    assert "the containers fetch of the pod keep the image vllm/vllm-openai:v0.32.0" in result.notes
    assert any("TOKEN_FILE had its value from secretKeyRef" in note for note in result.notes)


async def test_a_program_is_not_replaced_and_a_flag_without_a_successor_refuses() -> None:
    with pytest.raises(FlagError, match="command= is of processes"):
        await resolve_upgrade(NO_READER, workload(), {"command": "/opt/vllm"}, SETTING, "")
    with pytest.raises(FlagError, match="--enable-prompt-adapter"):
        await resolve_upgrade(
            NO_READER, workload(), {"image": PINNED}, {**SETTING, "enable_prompt_adapter": True}, "0.9.0"
        )


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("vllm/vllm-openai:v0.33.0", ("registry-1.docker.io", "vllm/vllm-openai", "v0.33.0")),
        ("vllm", ("registry-1.docker.io", "library/vllm", "latest")),
        ("ghcr.io/acme/deep/vllm:1", ("ghcr.io", "acme/deep/vllm", "1")),
        ("localhost:5000/vllm:1", ("localhost:5000", "vllm", "1")),
        ("docker.io/vllm/vllm-openai", ("registry-1.docker.io", "vllm/vllm-openai", "latest")),
    ],
)
def test_the_registry_of_an_image(image: str, expected: tuple[str, str, str]) -> None:
    assert split_image(image) == expected
