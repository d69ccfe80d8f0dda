"""The OpenAPI document is complete: every route, status and referenced schema."""

import json
import re

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from flettner.agent.api.app import OPERATIONS, build_app
from flettner.agent.api.openapi import document
from flettner.agent.api.operations import Operation
from flettner.agent.api.tokens import Tokens
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client, get

DOCUMENT = document(OPERATIONS)


def described() -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}


def routed() -> set[tuple[str, str]]:
    app = build_app(FakeDaemonView(), Tokens(None, FakeDaemonView().now))
    return {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None
    }


def test_routes_and_openapi_paths_match() -> None:
    assert routed() == described()


def test_every_reference_resolves() -> None:
    text = json.dumps(DOCUMENT)

    references = set(re.findall(r'"#/components/schemas/(\w+)"', text))

    assert references == set(DOCUMENT["components"]["schemas"])


def test_every_path_variable_is_a_parameter() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            declared = {
                parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"
            }
            assert declared == set(re.findall(r"{(\w+)}", path))


def test_operation_ids_are_unique() -> None:
    names = [
        operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()
    ]

    assert len(names) == len(set(names)) == len(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_documents_its_error_responses(operation: Operation) -> None:
    responses = DOCUMENT["paths"][operation.path][operation.method.lower()]["responses"]

    assert {str(operation.status), "401", "403", "421", "422", "429", "500"} <= set(responses)
    has_body = operation.body is not None or operation.name == "receiveDecision"
    assert ("415" in responses) == ("413" in responses) == has_body
    assert operation.method == "GET" or {"409", "503"} <= set(responses)
    for status, response in responses.items():
        assert int(status) < 400 or "application/problem+json" in response["content"]


async def test_serves_the_generated_document(client: Client) -> None:
    served = await get(client, "/openapi.json")

    assert served == json.loads(json.dumps(DOCUMENT))
    assert served["openapi"] == "3.1.0"


async def test_responses_have_the_documented_fields(client: Client, daemon: FakeDaemonView) -> None:
    daemon.suggest({"max_num_seqs": 128})
    for path, schema in (
        ("/v1/targets/chat", "TargetDocument"),
        ("/v1/suggestions/chat-s1", "SuggestionDocument"),
    ):
        answer = await get(client, path)

        assert set(answer) == set(DOCUMENT["components"]["schemas"][schema]["properties"])


async def test_console_pages_need_no_token_and_are_not_documented(
    daemon: FakeDaemonView, tokens: Tokens
) -> None:
    async def console(_: web.Request) -> web.Response:
        return web.Response(text="console")

    pages = [web.get(path, console, allow_head=False) for path in ("/", "/assets/console.js")]
    app = build_app(daemon, tokens, pages=pages)
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    async with TestClient(TestServer(app)) as client:
        async with client.get("/", headers=link) as page:
            assert (page.status, await page.text()) == (200, "console")
        async with client.get("/assets/console.js", headers={"Sec-Fetch-Site": "same-origin"}) as file:
            assert (file.status, await file.text()) == (200, "console")
            assert "script-src 'self'; style-src 'self'" in file.headers["Content-Security-Policy"]
        for path in ("/v1/targets", "/assets/other.js", "/assets/../v1/targets", "/assets/"):
            async with client.get(path) as response:
                assert response.status == 401

    assert "/" not in DOCUMENT["paths"]
