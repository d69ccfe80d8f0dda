"""What tests ask of the test cluster."""

import aiohttp

from tests.support.kubernetes.api import Json


async def request(address: str, path: str = "/v1/models") -> int:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
        session.get(f"http://{address}:8000{path}") as answer,
    ):
        return answer.status


def first_container(pod: Json) -> Json:
    status: Json = pod["status"].get("containerStatuses", [{}])[0]
    return status
