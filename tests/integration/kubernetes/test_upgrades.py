"""A workload is upgraded to another image and other variables, and rolled back, on a real API server."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.simulator.traffic import Load, TrafficGenerator
from flettner.vllm_facts.values import Setting
from tests.support.api_tokens import store_roles
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.engines import BLUE, FLAGS, GREEN, bind, names, serve, watched
from tests.support.kubernetes.manifests import IMAGE, PORT, container, deployment
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.site import STREAMS, KubernetesSite, host_site, site_of
from tests.support.rig import SHAPE, lost

pytestmark = pytest.mark.timeout(300)

PINNED = f"vllm/vllm-openai:v0.33.0@sha256:{'3' * 64}"
MISSING = "localhost:1/nobody/vllm:missing"
START: Setting = {"image": PINNED, "env.A": "2", "env.B": None}
ENV = [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}, {"name": "C", "value": "1"}]
UPGRADES = 'images = ["vllm/vllm-openai:v0.*@*", "localhost:1/nobody/*"]\nenv = ["A", "B"]'


async def vllm(here: Namespace, name: str = "vllm") -> Json:
    document = await here.get("deployments", name)
    written: Json = document["spec"]["template"]["spec"]["containers"][0]
    return written


@pytest.mark.smoke
async def test_a_promotion_writes_image_variables_and_flags_in_one_change(
    here: Namespace, tmp_path: Path
) -> None:
    await serve(here, env=ENV)
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()

    result = await engine.preflight([blue], GREEN.setting, "auto", START)
    green = await engine.launch(replace(GREEN, start=START), 60)
    before = await vllm(here)
    await engine.retire(BLUE)

    assert result.problem == ""
    assert result.resolved == {"image": (IMAGE, PINNED), "env.A": ("1", "2"), "env.B": ("1", None)}
    assert (before["image"], before["env"]) == (IMAGE, ENV)
    after, document = await vllm(here), await here.get("deployments", "vllm")
    assert (after["image"], after["args"][-1]) == (PINNED, "16")
    assert after["env"] == [{"name": "A", "value": "2"}, ENV[2]]
    assert document["metadata"]["annotations"]["flettner.dev/upgraded"] == "env.A env.B image"
    revisions = [item["metadata"]["annotations"] for item in await here.list("replicasets")]
    templates = [notes["deployment.kubernetes.io/revision"] for notes in revisions]
    assert sorted(templates) == ["1", "2"]  # one change of the template: no pod had a half of it
    assert green.name == "chat-r1"
    [promoted] = await engine.observe()
    assert promoted.start == START


@pytest.mark.smoke
async def test_an_image_that_cannot_be_pulled_ends_the_start_at_once(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()

    result = await engine.preflight([blue], blue.setting, "auto", {"image": MISSING})
    began = asyncio.get_running_loop().time()
    with pytest.raises(ActError, match=f"image {MISSING} cannot be pulled"):
        await engine.launch(replace(GREEN, start={"image": MISSING}), 600)

    assert any(f"the digest of {MISSING} is not known before green runs" in note for note in result.notes)
    assert asyncio.get_running_loop().time() - began < 60
    assert await names(here, "deployments") == {"vllm"}
    assert (await vllm(here))["image"] == IMAGE


async def test_a_tag_is_pinned_by_what_green_ran(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    engine = await bind(here, tmp_path)
    await engine.observe()

    await engine.launch(replace(GREEN, start={"image": "vllm/vllm-openai:v0.33.0"}), 60)
    await engine.retire(BLUE)

    assert (await vllm(here))["image"].startswith("vllm/vllm-openai:v0.33.0@sha256:")


async def test_the_patch_of_an_upgrade_ends_its_watch_and_shows_in_what_runs(
    here: Namespace, tmp_path: Path
) -> None:
    body = deployment("vllm", container(*FLAGS, env=ENV))
    body["metadata"]["labels"] |= {"argocd.argoproj.io/instance": "chat"}
    await here.run(body)
    engine = await bind(here, tmp_path)
    [before] = await engine.observe()
    watch, lost_servers = watched(engine, before)
    await asyncio.sleep(1)

    result = await engine.preflight([before], before.setting, "auto", {"image": PINNED})
    await here.api.call(
        "PATCH",
        here.path("deployments", "vllm"),
        yaml.safe_load(result.patch),
        kind="application/json-patch+json",
    )
    async with asyncio.timeout(60):
        await watch
    [after] = await engine.observe()

    assert (result.problem, result.owner) == ("", "Argo CD")
    assert [loss for loss in lost_servers if loss.gone] == []
    assert (before.start, after.start) == ({"image": IMAGE}, {"image": PINNED})


async def test_an_image_that_a_person_writes_after_an_upgrade_stays(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    engine = await bind(here, tmp_path)
    await engine.observe()
    await engine.launch(replace(GREEN, start={"image": PINNED}), 60)
    await engine.retire(BLUE)
    newer = container(*FLAGS, image="vllm/vllm-openai:v0.34.0")
    await here.api.patch(
        here.path("deployments", "vllm"), {"spec": {"template": {"spec": {"containers": [newer]}}}}
    )
    await here.available("vllm")

    [server] = await engine.observe()
    again = Server(name="chat-r2", setting=server.setting, like=server.name, start=server.start)
    await engine.launch(again, 60)

    assert server.start == {"image": "vllm/vllm-openai:v0.34.0"}
    [name] = [name for name in await names(here, "deployments") if "chat-r2" in name]
    assert (await vllm(here, name))["image"] == "vllm/vllm-openai:v0.34.0"


async def as_admin(site: KubernetesSite) -> None:
    await site.kill()
    site.token = store_roles(site.home / "tokens", principal="root")["admin"]
    await site.start()
    await site.serving()


async def test_an_upgrade_goes_through_the_canary_and_a_failed_pull_costs_nothing(
    here: Namespace, tmp_path: Path
) -> None:
    async with host_site(here, tmp_path / "s", upgrades=UPGRADES) as site:
        await as_admin(site)
        async with site.clients(load=STREAMS, timeout_s=90.0) as traffic:
            failed = await site.switch(image=MISSING)
            after_failure = await vllm(here)
            promoted = await site.switch(**{"image": PINNED, "env.A": "2", "max_num_seqs": 16})
            await site.restored()
        after = await vllm(here)

    assert failed["outcome"] in {"failed", "rolled_back"}, failed["why"]
    assert f"image {MISSING} cannot be pulled" in failed["why"]
    assert after_failure["image"] == IMAGE
    assert (promoted["outcome"], promoted["lost"]) == ("promoted", 0), promoted["why"]
    assert (after["image"], after["env"]) == (PINNED, [{"name": "A", "value": "2"}])
    assert "16" in after["args"]
    assert lost(traffic) == []


@pytest.mark.slow
async def test_an_adapter_outlasts_the_promotion_of_a_tag(here: Namespace, tmp_path: Path) -> None:
    """The operator's workload begins without it, and is then watched for the digest that was pinned."""
    env = [{"name": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "value": "True"}]
    await here.run(deployment("vllm", container(*FLAGS, env=env, gpus=1)))
    async with site_of(here, tmp_path / "s", upgrades='images = ["vllm/vllm-openai:*"]').running() as site:
        await as_admin(site)
        [pod] = await here.list("pods")
        await site.load_adapter(f"{pod['status']['podIP']}:{PORT}", "sql", tmp_path / "sql")
        clients = TrafficGenerator(site.url, "sql", Load(rate=3.0), shape=SHAPE, seed=2, timeout_s=90.0)
        await clients.start()
        try:
            async with site.clients(load=STREAMS, timeout_s=90.0):
                promoted = await site.switch(image="vllm/vllm-openai:v0.33.0", max_num_seqs=16)
                await asyncio.sleep(15)
        finally:
            await clients.stop()
        looks = [entry["action"] for entry in site.audit()].count("target.looked_at_again")
        [served] = (await site.target())["servers"]

    assert (promoted["outcome"], promoted["lost"]) == ("promoted", 0), promoted["why"]
    assert lost(clients) == []
    assert served["adapters"] == ["sql"]
    assert looks <= 2
