"""No client reaches a route that changes a server for all, unless the config opens it."""

import asyncio
import dataclasses
import http.client
import socket
from pathlib import Path

import pytest

from flettner.actuators.envoy.plugin import EnvoyPlugin
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.ports import Site
from flettner.vllm_facts.closed_routes import CLOSED_ROUTES
from tests.integration.envoy.steps import alone
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
    methods = ("GET", "POST", "DELETE")
    await traffic.route(alone(blue, 1))
    spellings = [f"/{name.replace('*', 'any')}" for name in CLOSED_ROUTES]
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
        "/v1%2Fload_lora_adapter",
        "/root/v1/load_lora_adapter//?x=/v1/models",
        "/%61dapters",
        "/adapters/sql/?x=1",
        "/root/adapters/sql%20one",
        "/adapters%2Fsql",
    ]

    denied = {
        path: [await asyncio.to_thread(status_of, traffic, path, method) for method in methods]
        for path in spellings
    }

    assert denied == {path: [404] * len(methods) for path in spellings}
    assert not blue.served


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/v1/models/Qwen%2FQwen3-8B",
        "/sleepy",
        "/load_lora_adapter/v1",
        "/v2/status",
        "/v1/responses/resp_sleep",
        "/v1/files?name=%73leep",
        "/adapters/sql/more",
        "/v1/adapter",
        "/health",
    ],
)
async def test_other_paths_pass(traffic: EnvoyTraffic, blue: Backend, path: str) -> None:
    await traffic.route(alone(blue, 1))

    assert await asyncio.to_thread(status_of, traffic, path, "POST") == 200


async def test_a_site_can_open_a_route(
    unbound: EnvoyPlugin, tmp_path: Path, blue: Backend, traffic: EnvoyTraffic
) -> None:
    await traffic.route(alone(blue, 1))
    closed = await asyncio.to_thread(status_of, traffic, "/v1/load_lora_adapter", "POST")
    opening = dataclasses.replace(unbound, open_routes=("v1/load_lora_adapter",))
    site = opening.bind(Site(target="chat", state_dir=tmp_path / "chat", epoch=4))

    await site.route(alone(blue, 2))

    paths = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep")
    statuses = [await asyncio.to_thread(status_of, traffic, path, "POST") for path in paths]
    assert (closed, statuses) == (404, [200, 404, 404])


@pytest.mark.parametrize(
    "header", ["x-original-url", "x-rewrite-url", "x-envoy-original-path", "x-http-method-override", ":path"]
)
async def test_no_header_names_another_path(traffic: EnvoyTraffic, blue: Backend, header: str) -> None:
    await traffic.route(alone(blue, 1))
    host, _, port = traffic.listen.rpartition(":")

    def send(path: str, value: str) -> bytes:
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            request = f"POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{header}: {value}\r\n"
            connection.sendall(f"{request}content-length: 0\r\n\r\n".encode())
            return connection.recv(4096)

    answer = await asyncio.to_thread(send, "/sleep", "/v1/models")

    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
    assert not blue.served
