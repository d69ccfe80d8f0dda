"""Of all that vLLM's own server routes, only what answers a client's question is open at the proxy."""

import pytest

from flettner.vllm_facts.closed_routes import CLOSED_ROUTES
from tests.support.vllm_interpreter import Ask

pytestmark = pytest.mark.smoke

ROUTES = """
import os
os.environ |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
from vllm.entrypoints.launchers.app import build_app
app = build_app(parser.parse_args([]), ("generate",), None)
print(json.dumps([route.path for route in app.routes if hasattr(route, "methods")]))
"""
READ = {
    "/docs",
    "/docs/oauth2-redirect",
    "/health",
    "/kv_event_sources",
    "/load",
    "/metrics",
    "/openapi.json",
}
READ |= {"/ping", "/redoc", "/v1/models", "/version"}
ASKED = {
    "/detokenize",
    "/generative_scoring",
    "/inference/v1/generate",
    "/invocations",
    "/tokenize",
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/chat/completions/derender",
    "/v1/chat/completions/render",
    "/v1/completions",
    "/v1/completions/derender",
    "/v1/completions/render",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/messages/render",
    "/v1/responses",
    "/v1/responses/render",
    "/v1/responses/{response_id}",
    "/v1/responses/{response_id}/cancel",
    "/v1/systemone",
}


def is_closed(route: str) -> bool:
    """As the proxy has it: one or two segments at the end, `*` for the parameter of a path."""
    last = route.strip("/").split("/")[-2:]
    words = ["*" if word.startswith("{") else word for word in last]
    return bool({words[-1], "/".join(words)} & {*CLOSED_ROUTES})


def test_each_route_is_one_that_clients_ask_or_is_closed(ask: Ask) -> None:
    """With development mode and adapters; a route that a new release brings is in neither list yet."""
    routes = ask(ROUTES, None)

    assert {route for route in routes if not is_closed(route)} <= READ | ASKED
    assert "/adapters/{adapter_name}" in routes, "SageMaker's name of the unloading, beside vLLM's own"
