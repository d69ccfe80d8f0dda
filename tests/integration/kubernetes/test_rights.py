"""The rights of the chart's Role under RBAC: enough, no more, and an error that names each missing one."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from flettner.actuators.envoy_deployment.channel import RouteChannel
from flettner.actuators.kubernetes.engine import KubernetesEngine
from flettner.actuators.kubernetes.lease import LeaseHolder, LeaseLock
from flettner.actuators.shared.published_route import PublishedRoute
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.primitives.wall_clock import utc_now
from tests.support.kubernetes.api import MERGE, Api, ApiError, Json
from tests.support.kubernetes.engines import BLUE, FLAGS, GREEN, ROLE, bind, names, serve
from tests.support.kubernetes.manifests import container, statefulset
from tests.support.kubernetes.namespace import Namespace

pytestmark = [pytest.mark.timeout(180), pytest.mark.any_cluster]

READ = {"get", "list", "watch"}
WRITE = {"create", "patch", "delete"}
GRANTED = [
    (index, lacking)
    for index, rule in enumerate(ROLE)
    for lacking in (READ, WRITE)
    if lacking & set(rule["verbs"])
]

NEVER = (
    ("GET", "/api/v1/namespaces/HERE/secrets"),
    ("GET", "/api/v1/namespaces/HERE/secrets/flettner-tokens"),
    ("POST", "/api/v1/namespaces/HERE/pods"),
    ("POST", "/api/v1/namespaces/HERE/pods/any/exec?command=sh"),
    ("POST", "/api/v1/namespaces/HERE/pods/any/portforward"),
    ("POST", "/api/v1/namespaces/HERE/pods/any/eviction"),
    ("POST", "/api/v1/namespaces/HERE/serviceaccounts/default/token"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/HERE/roles"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/HERE/rolebindings"),
    ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/HERE/leases/other"),
    ("DELETE", "/apis/coordination.k8s.io/v1/namespaces/HERE/leases/flettner"),
    ("POST", "/apis/apps/v1/namespaces/HERE/statefulsets"),
    ("DELETE", "/apis/apps/v1/namespaces/HERE/statefulsets/any"),
    ("DELETE", "/api/v1/namespaces/HERE/persistentvolumeclaims/any"),
    ("GET", "/apis/apps/v1/namespaces/default/deployments"),
    ("PATCH", "/apis/apps/v1/namespaces/kube-system/deployments/coredns"),
    ("GET", "/apis/apps/v1/deployments"),
    ("GET", "/api/v1/nodes"),
    ("GET", "/api/v1/namespaces"),
    ("GET", "/api/v1/persistentvolumes"),
    ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
)


@asynccontextmanager
async def as_daemon(here: Namespace) -> AsyncIterator[Api]:
    """The API with the token of a ServiceAccount that has the Role."""
    config = json.loads((await here.user("daemon", *ROLE)).read_text())
    async with Api(here.cluster.url, config["users"][0]["user"]["token"], here.cluster.ca) as api:
        yield api


async def test_the_api_server_grants_what_the_role_says_and_nothing_else(here: Namespace) -> None:
    async with as_daemon(here) as api:
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
        rights = {}
        for namespace in (here.name, "default", "kube-system"):
            answer = await api.create(
                "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
                review | {"spec": {"namespace": namespace}},
            )
            rights[namespace] = _triples(answer["status"]["resourceRules"])

    everyone = rights["default"]
    assert {(verb, kind) for verb, _, kind, _ in everyone} <= {
        ("create", "selfsubjectaccessreviews"),
        ("create", "selfsubjectrulesreviews"),
        ("create", "selfsubjectreviews"),  # from Kubernetes 1.28 on
    }
    assert rights == {
        here.name: _triples(ROLE) | everyone,
        "default": everyone,
        "kube-system": everyone,
    }


async def test_what_the_daemon_never_needs_is_forbidden(here: Namespace) -> None:
    async with as_daemon(here) as api:
        for method, path in NEVER:
            with pytest.raises(ApiError) as refused:
                await api.call(method, path.replace("HERE", here.name), {}, kind=MERGE)
            assert refused.value.status == 403, (method, path)


@dataclass
class Daemon:
    """Does all that a daemon asks of the API server; each method returns its problems.

    `engine` has the Deployment `vllm`, `of_set` the StatefulSet `set`.
    """

    engine: KubernetesEngine
    of_set: KubernetesEngine

    @property
    def client(self) -> KubernetesClient:
        return KubernetesClient(kubeconfig=self.engine._options.kubeconfig)

    async def lock(self) -> str:
        return await LeaseHolder(LeaseLock(client=self.client, name="flettner"), "a", utc_now)._try()

    async def problems(self) -> str:
        return "; ".join(await self.engine.problems())

    async def first_blue(self) -> str:
        [blue] = await self.engine.observe()
        return (await self.engine.preflight([blue], GREEN.setting, "auto")).problem

    async def launch(self) -> str:
        await self.engine.launch(GREEN, 20)
        return "; ".join(await self.engine.log(GREEN))

    async def publish(self) -> str:
        channel = RouteChannel(
            client=self.client, deployment="flettner-proxy", target="chat", epoch=1, process="a"
        )
        published = PublishedRoute(
            target="chat",
            epoch=1,
            process="a",
            listen="0.0.0.0:8080",
            session_header="x-session-id",
            report_every_s=2.0,
            route=Route(number=1, servers=(GREEN,), weights={GREEN.name: 100}, fallback=GREEN.name),
        )
        written = await channel.write(published, await channel.claim())
        await channel.write(published, written)
        await channel.remove()
        return ""

    async def shrink(self) -> str:
        await self.engine.stop(BLUE, keep=1)
        return ""

    async def retire(self) -> str:
        await self.engine.retire(GREEN)
        return ""

    async def stop_set(self) -> str:
        await self.of_set.stop(Server(name="set", setting={}))
        return "; ".join(await self.of_set.problems())

    async def said(self) -> list[str]:
        """What each says, one after the other."""
        calls = (
            *(self.lock, self.lock, self.problems, self.first_blue, self.launch),
            *(self.publish, self.shrink, self.retire, self.stop_set),
        )
        return [await _said(call) for call in calls]


@pytest.mark.parametrize(
    ("index", "lacking"),
    GRANTED,
    ids=[
        f"{'read' if lacking is READ else 'write'} {'+'.join(ROLE[index]['resources'])}"
        for index, lacking in GRANTED
    ],
)
async def test_a_missing_right_is_named_and_harms_nothing(
    here: Namespace, tmp_path: Path, index: int, lacking: set[str]
) -> None:
    rules = [dict(rule) for rule in ROLE]
    rules[index]["verbs"] = [verb for verb in rules[index]["verbs"] if verb not in lacking]
    rules = [rule for rule in rules if rule["verbs"]]
    await serve(here, replicas=2)
    await here.run(statefulset("set", container(*FLAGS)))
    engine = await bind(here, tmp_path, *rules)
    of_set = await bind(here, tmp_path, *rules, epoch=2, names=("set",), kind="statefulsets")

    said = await Daemon(engine, of_set).said()

    resources = _kinds(ROLE[index]["resources"])
    assert any(
        "forbids it" in sentence and any(f'"{resource}"' in sentence for resource in resources)
        for sentence in said
    ), said
    assert "vllm" in await names(here, "deployments")
    await here.available("vllm")


async def _said(call: Callable[[], Awaitable[str]]) -> str:
    """What it returns, or the sentence of its error; any other error is a crash."""
    try:
        async with asyncio.timeout(60):
            return await call()
    except ActError as error:
        return error.why


def _kinds(resources: list[str]) -> set[str]:
    return {resource.partition("/")[0] for resource in resources}


def _triples(rules: list[Json]) -> set[tuple[str, str, str, str]]:
    return {
        (verb, group, resource, name)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule.get("apiGroups", ())
        for resource in rule.get("resources", ())
        for name in rule.get("resourceNames", None) or ("",)
    }
