"""What the engine asks of a real API server, and what it says while that is away."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from flettner.actuators.kubernetes.plugin import KubernetesPlugin
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from flettner.clients.kubernetes.client import DEPLOYMENT, KubernetesClient, patiently
from flettner.clients.kubernetes.errors import AwayError
from tests.support.kubernetes import kubeconfig
from tests.support.kubernetes.engines import FLAGS, ROLE, bind, serve, watched
from tests.support.kubernetes.manifests import container, deployment
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.tls_front import TlsFront

pytestmark = pytest.mark.timeout(180)


async def refusal(ask: Callable[[], Awaitable[object]]) -> ActError:
    """Ask until it is refused."""
    async with asyncio.timeout(60):
        while True:
            try:
                await ask()
            except ActError as error:
                return error
            await asyncio.sleep(0.1)


async def test_idle_targets_cost_no_call_and_a_change_is_seen(here: Namespace, tmp_path: Path) -> None:
    names = ("one", "two")
    for name in names:
        await here.run(deployment(name, container(*FLAGS)))
    user = await here.user("flettner", *ROLE)
    engines = [
        KubernetesPlugin(deployments=(name,), kubeconfig=str(user)).bind(
            Site(target=name, state_dir=tmp_path / name, epoch=1)
        )
        for name in names
    ]
    watches = [watched(engine, (await engine.observe())[0]) for engine in engines]
    await asyncio.sleep(2)
    before = here.cluster.requests(here.name)

    for _ in range(5):
        await asyncio.sleep(1)
        for engine in engines:
            [server] = await engine.observe()
            assert await engine.busy(server) == 0
    idle = here.cluster.requests(here.name)[len(before) :]
    await here.api.patch(here.path("deployments", "two"), {"spec": {"replicas": 0}})
    async with asyncio.timeout(20):
        await watches[1][0]

    assert idle == []
    assert [before.count(f"watch {kind}") for kind in ("deployments", "pods")] == [1, 1]
    assert [[(loss.server, loss.gone) for loss in lost] for _, lost in watches] == [[], [("two", True)]]
    watches[0][0].cancel()


async def test_what_is_asked_while_the_api_server_is_away_is_an_error_and_no_old_answer(
    here: Namespace, tmp_path: Path
) -> None:
    await serve(here)
    engine = await bind(here, tmp_path)
    task, lost = watched(engine, (await engine.observe())[0])

    here.cluster.stop_api()
    error = await refusal(engine.observe)
    [problem] = await engine.problems()
    here.cluster.start_api()
    here.cluster.wait()
    await here.api.patch(here.path("deployments", "vllm"), {"spec": {"replicas": 0}})
    async with asyncio.timeout(60):
        await task

    assert isinstance(error, AwayError)
    assert "does not answer" in problem
    assert [loss.why for loss in lost] == ["vllm was scaled to 0 by a third party"]


async def test_a_token_that_is_replaced_is_read_again(here: Namespace) -> None:
    old = await here.user("old", *ROLE)
    path = old.rename(old.with_name(f"{here.name}.kubeconfig"))
    client = KubernetesClient(kubeconfig=str(path))
    assert await client.find(DEPLOYMENT) == []
    assert await client.cached.find(DEPLOYMENT) == []

    new = await here.user("new", *ROLE)
    await here.api.delete(here.path("serviceaccounts", "old"))
    await here.gone("serviceaccounts", "old")
    error = await refusal(lambda: client.find(DEPLOYMENT))  # the API server remembers a token for 10 s
    new.rename(path)

    assert "401" in error.why
    assert await client.find(DEPLOYMENT) == []
    await here.create("deployments", deployment("vllm", container(*FLAGS), replicas=0))
    async with asyncio.timeout(60):
        while not await client.cached.find(DEPLOYMENT):
            await asyncio.sleep(0.2)


async def test_an_authority_that_is_replaced_is_read_again(
    here: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by the watch, whose connection the API server closes when it starts with a new certificate."""
    monkeypatch.setattr("flettner.clients.kubernetes.connection._REOPEN_S", 0.1)
    user = yaml.safe_load((await here.user("daemon", *ROLE)).read_text())["users"][0]["user"]
    async with TlsFront.running(here.cluster.url, here.cluster.ca, tmp_path) as front:
        path = kubeconfig.write(
            tmp_path / "kubeconfig",
            url=front.address,
            ca=front.authority,
            user="daemon",
            token=user["token"],
            namespace=here.name,
        )
        client = KubernetesClient(kubeconfig=str(path))
        assert await client.find(DEPLOYMENT) == []
        assert await client.cached.find(DEPLOYMENT) == []

        await front.replace(2)
        error = await refusal(lambda: client.find(DEPLOYMENT))
        front.publish(2)

        assert isinstance(error, AwayError)
        assert "certificate of the API server is not accepted" in error.why
        assert await patiently(lambda: client.find(DEPLOYMENT)) == []
        await here.create("deployments", deployment("vllm", container(*FLAGS), replicas=0))
        async with asyncio.timeout(60):
            while not await patiently(lambda: client.cached.find(DEPLOYMENT)):
                await asyncio.sleep(0.2)
