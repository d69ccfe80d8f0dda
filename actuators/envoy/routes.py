"""Envoy's routes as data: the server of each request, its retries, and answers when there is no server.

A full split is one route, so that shares, lease and epoch always come from the same write.
"""

import json

from flettner.actuators.envoy import hold
from flettner.actuators.envoy.resources import ID_HEADER, IDLE, typed
from flettner.actuators.envoy.share_table import ShareRange, first_tries, second_tries
from flettner.actuators.envoy.split import NAMESPACE, Json
from flettner.actuators.shared.split import without_lease
from flettner.agent.domain.effects import Route
from flettner.agent.domain.model import Hold
from flettner.clients.envoy_records.record import UNIQUE_ID, cluster_name

RETRIED_BODY_BYTES = 16 << 20  # a request with a larger body is not tried again

_FORWARD: Json = {
    "timeout": "0s",  # the default of 15 s cuts streams
    "idle_timeout": IDLE,
    "retry_policy": {
        "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
        "retriable_status_codes": [502, 503],
        "num_retries": 1,
        "refresh_cluster_on_retry": True,
        "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
    },
}


def routes(
    route: Route, *, target: str, metadata: Json, session_header: str, held: Hold | None = None
) -> Json:
    """The split. `metadata`: the data that reads it back. `held`: how requests wait if it is closed."""
    ours = {"metadata": {"filter_metadata": {NAMESPACE: metadata}}}
    head = {"name": "split", "match": {"prefix": "/"}, **ours}
    if route.closed_s:
        answer = _hold(target, held) if held else _build_retry_answer(route)
        return _configuration(target, {**head, **answer})
    ahead = [_lease_over(route, target, session_header)] if route.leased else []
    return _configuration(target, *ahead, {**head, **_divided(route, target, session_header)})


def _configuration(target: str, *routes: Json) -> Json:
    everything = {
        "name": "all",
        "domains": ["*"],
        "routes": routes,
        "include_request_attempt_count": True,
        "request_headers_to_add": [_header(ID_HEADER, UNIQUE_ID)],
    }
    return typed("envoy.config.route.v3.RouteConfiguration", name=target, virtual_hosts=[everything])


def _header(key: str, value: str) -> Json:
    return {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def _lease_over(route: Route, target: str, session_header: str) -> Json:
    """Matches the Lua filter's mark: dynamic metadata, because a client could send a header."""
    mark = {"filter": NAMESPACE, "path": [{"key": "lease"}], "value": {"string_match": {"exact": "expired"}}}
    return {
        "name": "lease-over",
        "match": {"prefix": "/", "dynamic_metadata": [mark]},
        **_divided(without_lease(route), target, session_header),
    }


def _divided(route: Route, target: str, session_header: str) -> Json:
    name = "envoy.router.cluster_specifier_plugin.priority_group"
    specifier = typed(
        "envoy.extensions.router.cluster_specifiers.priority_group.v3.PriorityGroupClusterSpecifier",
        use_hash_policy=True,  # without the header: random
        priority_groups=[
            _group("split", target, first_tries(route)),
            _group("again", target, second_tries(route)),
        ],
    )
    return {
        "request_body_buffer_limit": RETRIED_BODY_BYTES,
        "route": {
            **_FORWARD,
            "hash_policy": [{"header": {"header_name": session_header}, "terminal": True}],
            "inline_cluster_specifier_plugin": {"extension": {"name": name, "typed_config": specifier}},
        },
    }


def _group(name: str, target: str, parts: tuple[ShareRange, ...]) -> Json:
    """Envoy uses the groups in turn, one for each try, and refuses a weight of 0."""
    clusters = [{"cluster_name": cluster_name(target, server), "weight": part} for server, part in parts]
    return {"name": name, "clusters": clusters}


def _hold(target: str, held: Hold) -> Json:
    """Without a limit of its own for the body: what waits is bounded by the buffer of a connection."""
    waiting = {**_FORWARD, "cluster": cluster_name(target, hold.OPENED)}
    return {"route": waiting, "typed_per_filter_config": hold.on_route(held)}


def _build_retry_answer(route: Route) -> Json:
    body = json.dumps(hold.retry_answer(hold.retry_after(route)))
    return {
        "direct_response": {"status": hold.UNAVAILABLE, "body": {"inline_string": body}},
        "response_headers_to_add": [
            _header("retry-after", hold.retry_after(route)),
            _header("content-type", "application/json"),
        ],
    }
