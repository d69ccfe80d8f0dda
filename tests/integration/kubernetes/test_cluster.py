"""The cluster of the tests behaves like Kubernetes."""

import aiohttp
import pytest

from tests.support.kubernetes.manifests import container, deployment, headless_service
from tests.support.kubernetes.namespace import Namespace

pytestmark = pytest.mark.timeout(180)


async def test_a_deployment_answers_at_the_name_of_its_service(here: Namespace) -> None:
    await here.create("services", headless_service("vllm", {"app": "vllm"}))
    await here.create("deployments", deployment("vllm", container(gpus=1), replicas=2))
    await here.available("vllm")

    addresses = await here.dns.resolve(f"vllm.{here.name}.svc")

    assert addresses is not None
    assert sorted(addresses) == sorted(pod.address for pod in here.node.pods.values())
    for address in addresses:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{address}:8000/v1/models") as answer,
        ):
            assert answer.status == 200
