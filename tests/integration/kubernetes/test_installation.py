"""`flettner init` for a namespace, its values in the chart, and the daemon of the manifests in a pod."""

import asyncio
import base64
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from flettner.agent.api.tokens import mint_token
from tests.support.helm import manifests, of_kind
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.engines import CLAIM, serve
from tests.support.kubernetes.manifests import container, deployment
from tests.support.kubernetes.namespace import Namespace
from tests.support.rig import FLETTNER, Document, until

pytestmark = pytest.mark.timeout(240)

OURS = {"ConfigMap", "PersistentVolumeClaim", "Deployment"}


async def init(here: Namespace, values: Path, *resources: str) -> tuple[int | None, str]:
    """As a person who may list these, in the folder of the file. Return the exit status and the output."""
    read = {"apiGroups": ["apps", ""], "resources": list(resources), "verbs": ["get", "list"]}
    user = await here.user("-".join(("person", *resources)), read)
    process = await asyncio.create_subprocess_exec(
        *(
            *FLETTNER,
            "init",
            "--engine",
            "kubernetes",
            *(() if values.name == "values.yaml" else (str(values),)),
        ),
        cwd=values.parent,
        env=os.environ | {"KUBECONFIG": str(user)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


async def install(here: Namespace, documents: list[Json], tokens: str) -> None:
    """As `kubectl apply`, except that pods of these tests get their token by a Secret."""
    user = json.loads((await here.user("daemon", *of_kind("Role", documents)["rules"])).read_text())
    cluster = user["clusters"][0]["cluster"]
    cluster["certificate-authority-data"] = _encoded(Path(cluster.pop("certificate-authority")).read_text())
    for name, content in (
        ("flettner-tokens", {"tokens": tokens}),
        ("kubeconfig", {"config": json.dumps(user)}),
    ):
        data = {key: _encoded(text) for key, text in content.items()}
        await here.create("secrets", {"metadata": {"name": name}, "data": data})
    for document in documents:
        if document["kind"] in OURS:
            if document["metadata"]["name"] == "flettner" and document["kind"] == "Deployment":
                _run_from_here(document)
            await here.create(f"{document['kind'].lower()}s", document)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _run_from_here(daemon: Json) -> None:
    """Without an image: by this interpreter, with the image's own command line."""
    spec = daemon["spec"]["template"]["spec"]
    [container] = spec["containers"]
    container["command"] = [sys.executable, "-m", "flettner"]
    container["args"] = ["run", "-c", "/etc/flettner/flettner.toml"]
    container["env"].append({"name": "KUBECONFIG", "value": "/kube/config"})
    container["volumeMounts"].append({"name": "kube", "mountPath": "/kube"})
    spec["volumes"].append({"name": "kube", "secret": {"secretName": "kubeconfig"}})


async def status_of(here: Namespace, token: str) -> Document:
    """By the port that `kubectl port-forward` reaches: on the pod's loopback."""
    command = ("ip", "netns", "exec", here.node.pod("flettner").netns, *FLETTNER, "status", "--json")
    process = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | {"FLETTNER_URL": "http://127.0.0.1:8090", "FLETTNER_TOKEN": token},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    said, _ = await process.communicate()
    return json.loads(said) if process.returncode == 0 else {}


async def test_a_namespace_is_found_installed_and_measured(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    values = tmp_path / "values.yaml"
    (tmp_path / "flettner.toml").touch()  # of another engine
    status, said = await init(here, values, "deployments", "statefulsets", "pods")
    assert status == 0, said
    documents = manifests(yaml.safe_load(values.read_text()) | {"persistence": CLAIM}, namespace=here.name)
    token, line = mint_token(
        role="viewer", principal="a", made_at=datetime.fromtimestamp(0, UTC), expires=None
    )

    await install(here, documents, line.model_dump_json(exclude_none=True))
    await here.available("flettner")

    async def target() -> Document:
        reply = await status_of(here, token)
        return next(iter(reply.get("targets", ())), {})

    reading = await until(target, lambda document: document.get("reading"), "the metrics of the Deployment")
    assert "found kubernetes vllm: tiny" in said
    assert f"helm install flettner deploy/helm/flettner --namespace {here.name} --values values.yaml" in said
    assert (reading["name"], reading["mode"]) == ("tiny", "advise")
    assert [server["name"] for server in reading["servers"]] == ["vllm"]
    assert {service["metadata"]["name"] for service in await here.list("services")} == set()
    assert here.node.pod("flettner").container("flettner").restarts == 0


async def test_what_a_person_may_not_list_is_named_and_the_rest_is_found(
    here: Namespace, tmp_path: Path
) -> None:
    await serve(here)

    some = await init(here, tmp_path / "some.yaml", "deployments")
    none = await init(here, tmp_path / "none.yaml", "services")

    assert some[0] == 0, some
    assert "skipped: kubernetes: list the StatefulSets: the API server forbids it" in some[1]
    assert "skipped: kubernetes: list the Pods: the API server forbids it" in some[1]
    assert "found kubernetes vllm: tiny at an address on its own network" in some[1]
    assert 'deployments = ["vllm"]' in (tmp_path / "some.yaml").read_text()
    assert (none[0], none[1].count("the API server forbids it")) == (1, 2)


async def test_a_deployment_that_runs_vllm_by_a_shell_is_named(here: Namespace, tmp_path: Path) -> None:
    serving = container("vllm serve tiny --max-num-seqs 8", command=["/bin/sh", "-c"])
    await here.create("deployments", deployment("chat", serving, replicas=0))
    await here.create("deployments", deployment("web", container(image="web"), replicas=0))

    status, said = await init(here, tmp_path / "values.yaml", "deployments", "statefulsets")

    assert status == 1
    assert "skipped: kubernetes: the Deployment chat: the command starts a shell (sh)" in said
    assert "the Deployment web" not in said
    assert "no vLLM server found by the kubeconfig" in said
    assert not (tmp_path / "values.yaml").exists()
