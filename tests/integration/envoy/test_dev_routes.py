"""No client reaches the routes that vLLM has in development mode."""

import asyncio
import http.client

import pytest

from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.vllm_facts.dev_routes import DEV_ROUTES
from tests.integration.envoy.test_closed import opened
from tests.support.sse_backend import Backend


def status_of(traffic: EnvoyTraffic, path: str, method: str) -> int:
    """The path as it is spelled, which most clients would normalise."""
    host, _, port = traffic.listen.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        connection.putheader("content-length", "0")
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.smoke
async def test_every_one_is_denied_in_every_spelling(traffic: EnvoyTraffic, blue: Backend) -> None:
    await traffic.route(opened(blue, 1))
    spellings = [f"/{name}" for name in DEV_ROUTES]
    spellings += [
        "/sleep?level=2",
        "/sleep/",
        "//sleep",
        "/%73leep",
        "/%73%6Ceep?level=1",
        "/wake%5fup",
        "/root/sleep",
        "/./sleep",
        "/v1/../sleep",
        "/collective%5Frpc",
    ]

    denied = {
        path: [await asyncio.to_thread(status_of, traffic, path, method) for method in ("GET", "POST")]
        for path in spellings
    }

    assert denied == {path: [404, 404] for path in spellings}
    assert not blue.served


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/v1/models/Qwen%2FQwen3-8B",
        "/sleepy",
        "/v1/responses/resp_sleep",
        "/v1/files?name=%73leep",
        "/health",
    ],
)
async def test_other_paths_pass(traffic: EnvoyTraffic, blue: Backend, path: str) -> None:
    await traffic.route(opened(blue, 1))

    assert await asyncio.to_thread(status_of, traffic, path, "POST") == 200
