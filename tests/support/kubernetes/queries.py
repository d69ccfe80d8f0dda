"""What tests ask of the test cluster."""

import aiohttp

from tests.support.kubernetes.api import Json
from tests.support.kubernetes.namespace import Namespace


async def request(address: str, path: str = "/v1/models") -> int:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
        session.get(f"http://{address}:8000{path}") as answer,
    ):
        return answer.status


def first_container(pod: Json) -> Json:
    status: Json = pod["status"].get("containerStatuses", [{}])[0]
    return status


def waiting_for(pod: Json) -> str:
    """The reason why the first container does not run, such as CrashLoopBackOff."""
    return str(first_container(pod).get("state", {}).get("waiting", {}).get("reason", ""))


async def pods(here: Namespace, count: int) -> Json:
    """The pods of a namespace once there are `count`; for `Namespace.eventually`."""
    documents = await here.list("pods")
    return {"items": documents} if len(documents) == count else {}
