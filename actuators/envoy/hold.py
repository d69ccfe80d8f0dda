"""How Envoy holds the requests of a closed route: it waits for a cluster that does not exist yet.

The closed route names the cluster `OPENED`. Envoy's filter `on_demand` lets a request wait for a cluster that
is unknown, and would ask a control plane for it; the one named here has no address. When a server serves
again its address is added under the name `OPENED`, and every request that waits continues at once. Measured
with Envoy 1.40: a waiting request reads at most one buffer of its body, one whose client leaves is dropped,
and a new write of the closed route drops none. All of them run out together, `wait_s` after the first one.
"""

import math

from flettner.actuators.envoy.split import Json
from flettner.agent.domain.effects import Route
from flettner.agent.domain.model import Hold

OPENED = "@opened"  # no server has this name
NOWHERE = "nowhere"
UNAVAILABLE = 503
RETRY_AFTER = "retry_after"  # key of the route's metadata

_TYPES = "type.googleapis.com/envoy."
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_LIMIT, _WAIT = "hold_requests", "hold_s"  # names of the filters
_LIMIT_TYPE = _TYPES + "extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
_ON_DEMAND = _TYPES + "extensions.filters.http.on_demand.v3."
_TOO_MANY = 429  # of the filter's own answer, which clients never see
_ALL: Json = {"default_value": {"numerator": 100}}
_SECONDS = f"%METADATA(ROUTE:flettner:{RETRY_AFTER})%"


def nowhere() -> Json:
    """The control plane that never answers. Envoy accepts only one of its start configuration."""
    http2 = {
        "@type": f"type.googleapis.com/{_HTTP_OPTIONS}",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    return {
        "name": NOWHERE,
        "type": "STATIC",
        "load_assignment": {"cluster_name": NOWHERE},
        "typed_extension_protocol_options": {_HTTP_OPTIONS: http2},
    }


def filters() -> list[Json]:
    """They do nothing on a route that names neither."""
    return [
        {"name": _LIMIT, "typed_config": {"@type": _LIMIT_TYPE, "stat_prefix": _LIMIT}},
        {"name": _WAIT, "typed_config": {"@type": _ON_DEMAND + "OnDemand"}},
    ]


def on_route(hold: Hold) -> Json:
    """What makes the filters act on one route."""
    wait = f"{hold.wait_s:g}s"
    limit = {
        "@type": _LIMIT_TYPE,
        "stat_prefix": _LIMIT,
        "token_bucket": {
            "max_tokens": hold.requests,
            "tokens_per_fill": hold.requests,
            "fill_interval": wait,
        },
        "filter_enabled": _ALL,
        "filter_enforced": _ALL,
    }
    control_plane = {
        "resource_api_version": "V3",
        "api_config_source": {
            "api_type": "DELTA_GRPC",
            "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": {"cluster_name": NOWHERE}}],
        },
    }
    waiting = {"@type": _ON_DEMAND + "PerRouteConfig", "odcds": {"source": control_plane, "timeout": wait}}
    return {_LIMIT: limit, _WAIT: waiting}


def retry_answer(seconds: str) -> Json:
    """A retryable answer without a server, in the format that OpenAI's clients read."""
    message = f"The model is being restarted with other settings; ask again in {seconds} s."
    return {"error": {"message": message, "type": "service_unavailable", "code": UNAVAILABLE}}


def local_replies() -> Json:
    """The answer to a request that waited in vain (flag NC), or found too many waiting."""
    refused = {
        "status_code_filter": {
            "comparison": {
                "op": "EQ",
                "value": {"default_value": _TOO_MANY, "runtime_key": "flettner.too_many"},
            }
        }
    }
    vain = {"response_flag_filter": {"flags": ["NC"]}}
    header = {"key": "retry-after", "value": _SECONDS}
    return {
        "mappers": [
            {
                "filter": {"or_filter": {"filters": [vain, refused]}},
                "status_code": UNAVAILABLE,
                "headers_to_add": [{"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
                "body_format_override": {"json_format": retry_answer(_SECONDS)},
            }
        ]
    }


def retry_after(route: Route) -> str:
    """Whole seconds."""
    return str(math.ceil(route.closed_s))
