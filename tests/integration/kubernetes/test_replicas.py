"""Servers of several pods: one pod at a time changes, without a lost request, on a real API server."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.kubernetes.start import NoNodeError
from flettner.agent.domain.model import Server
from flettner.simulator.traffic import Load
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.engines import GREEN, bind, names, serve
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.site import KubernetesSite, host_site
from tests.support.rig import lost, until

pytestmark = pytest.mark.timeout(300)

BLUE = Server(name="vllm", setting={}, replicas=2)
LONG = {"model": "tiny", "prompt": "one two three", "max_tokens": 100}


async def pods_of(here: Namespace, app: str = "vllm") -> list[Json]:
    pods = await here.list("pods")
    return [pod for pod in pods if pod["metadata"]["labels"].get("app") == app]


async def test_a_pod_that_leaves_ends_its_requests_first(here: Namespace, tmp_path: Path) -> None:
    await serve(here, "--sim-speed", "1", replicas=2)
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()
    addresses = [f"http://{pod['status']['podIP']}:8000" for pod in await pods_of(here)]

    async with aiohttp.ClientSession() as session:
        asked = [asyncio.create_task(_complete(session, address)) for address in addresses]
        await asyncio.sleep(0.3)
        await engine.stop(blue, keep=1)
        answers = await asyncio.gather(*asked)

    assert blue.replicas == 2
    assert answers == [200, 200]
    document = await here.get("deployments", "vllm")
    assert document["spec"]["replicas"] == 1
    assert document["metadata"]["annotations"]["flettner.dev/replicas"] == "2"
    assert [server.replicas for server in await engine.observe()] == [1]
    assert len(await here.list("pods")) == 1


async def _complete(session: aiohttp.ClientSession, address: str) -> int:
    async with session.post(f"{address}/v1/completions", json=LONG) as answer:
        await answer.read()
        return answer.status


async def test_a_pod_is_given_back(here: Namespace, tmp_path: Path) -> None:
    await serve(here, replicas=2)
    engine = await bind(here, tmp_path)
    await engine.observe()
    await engine.stop(BLUE, keep=1)

    again = await engine.launch(BLUE, 60)

    document = await here.available("vllm")
    assert again.replicas == 2
    assert document["spec"]["replicas"] == 2
    assert "flettner.dev/replicas" not in (document["metadata"].get("annotations") or {})


async def test_a_growth_that_fails_leaves_what_serves(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flettner.actuators.kubernetes.start._NO_NODE_S", 1.0)
    await serve(here, gpus=1)
    engine = await bind(here, tmp_path)
    [blue] = await engine.observe()
    green = await engine.launch(GREEN, 60)

    with pytest.raises(NoNodeError, match="no node takes"):
        await engine.launch(replace(green, replicas=2), 60)

    assert [(server.name, server.replicas) for server in await engine.observe()] == [
        ("chat-r1", 1),
        ("vllm", 1),
    ]
    result = await engine.preflight([blue], GREEN.setting, "auto")
    assert "Insufficient nvidia.com/gpu" in result.problem
    assert 'strategy = "swap"' in result.problem
    result = await engine.preflight([replace(blue, replicas=4)], GREEN.setting, "auto")
    assert result.strategy == "replace"


@pytest.mark.parametrize("spare", [0, 1])
async def test_a_handover_needs_no_more_gpus_than_the_rollout(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    monkeypatch.setattr("flettner.actuators.kubernetes.start._NO_NODE_S", 1.0)
    if spare:
        await here.add_node(gpus=spare)
    await serve(here, replicas=2, gpus=1)
    engine = await bind(here, tmp_path)
    await engine.observe()
    await engine.stop(BLUE, keep=1)
    green = await engine.launch(GREEN, 60)
    await engine.stop(replace(BLUE, replicas=1))
    await engine.launch(replace(green, replicas=2), 60)

    moved = await engine.retire(BLUE)

    document = await here.available("vllm")
    assert moved == "chat-r1"
    assert await names(here, "deployments") == {"vllm"}
    assert document["spec"]["replicas"] == 2
    assert [(server.name, server.replicas) for server in await engine.observe()] == [("chat-r1", 2)]
    marks = {key for pod in await pods_of(here) for key in pod["metadata"]["labels"]}
    assert marks == {"app", "pod-template-hash"}


async def roll_out(here: Namespace, site: KubernetesSite) -> tuple[Json, list[object], int]:
    """Return the rollout, the lost requests, and the fewest pods that served."""
    fewest = 99
    async with site.clients(load=Load(streams=8), timeout_s=90.0) as traffic:
        suggestion = await site.change(max_num_seqs=16)

        async def look() -> Json:
            nonlocal fewest
            ready = [
                pod
                for pod in await here.list("pods")
                if "deletionTimestamp" not in pod["metadata"]
                and "flettner.dev/drains" not in pod["metadata"]["labels"]
                and any(
                    c["type"] == "Ready" and c["status"] == "True"
                    for c in pod["status"].get("conditions", ())
                )
            ]
            fewest = min(fewest, len(ready))
            return await site.rollout()

        await until(look, lambda state: bool(state and state["ended_at"]), "the end", 1500.0)
        rollout = await site.ended(suggestion)
        await site.restored()
    return rollout, list(lost(traffic)), fewest


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("strategy", "gpus", "fewest"), [("replace", 4, 3), ("surge", 5, 4)])
async def test_four_pods_change_one_after_the_other(
    here: Namespace, tmp_path: Path, strategy: str, gpus: int, fewest: int
) -> None:
    await here.add_node(gpus=gpus - 2)
    async with host_site(here, tmp_path / "s", replicas=4, strategy=strategy) as site:
        rollout, gone, least = await roll_out(here, site)

        assert (rollout["outcome"], rollout["lost"], gone) == ("promoted", 0, []), rollout["why"]
        assert least >= fewest
        document = await here.available("vllm")
        assert (document["spec"]["replicas"], "16" in await site.flags("vllm")) == (4, True)


@pytest.mark.timeout(1800)
async def test_a_deployment_that_is_scaled_in_a_canary_is_rolled_out_with_its_new_number(
    here: Namespace, tmp_path: Path
) -> None:
    """As a person or an autoscaler does. Scaled down it would cut the requests of a pod."""
    steps = ((25, 20, 30.0), (50, 5, 0.5))
    async with host_site(here, tmp_path / "s", gpus=0, strategy="surge", steps=steps) as site:
        site.patience_s = 1500.0
        async with site.clients(load=Load(streams=8), timeout_s=90.0) as traffic:
            suggestion = await site.change(max_num_seqs=16)
            await site.in_phase("canary")
            await site.scale("vllm", 2)
            await until(partial(_engines, site), (2).__eq__, "the number to be seen")
            rollout = await site.ended(suggestion)
            document = await site.restored()

        assert (rollout["outcome"], rollout["restarts"], lost(traffic)) == ("promoted", 0, []), rollout["why"]
        assert [step["weight"] for step in rollout["plan"]["steps"]][-1] == 67
        assert document["spec"]["replicas"] == 2


async def _engines(site: KubernetesSite) -> int:
    """How many replicas the daemon knows of the old server."""
    [blue] = [server for server in (await site.target())["servers"] if server["color"] == "blue"]
    return int(blue["replicas"])
