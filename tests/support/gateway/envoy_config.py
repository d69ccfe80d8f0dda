"""HTTPRoutes and Endpoints as resources of Envoy, as gateways made of Envoy translate them."""

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]

_TYPES = "type.googleapis.com/"
_PROTOCOL = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_RETRY = {  # the default of Envoy Gateway
    "retry_on": "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes",
    "retriable_status_codes": [503],
    "num_retries": 2,
}
RECORDS = "accesslog_otel_0_0"
ACCESS_LOG = {
    "route_name": "%ROUTE_NAME%",
    "upstream_host": "%UPSTREAM_HOST%",
    "upstream_cluster": "%UPSTREAM_CLUSTER_RAW%",
    "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
    "response_code": "%RESPONSE_CODE%",
    "response_flags": "%RESPONSE_FLAGS%",
    "duration": "%DURATION%",
    "first_byte_us": "%COMMON_DURATION(US_TX_BEG:US_RX_BODY_BEG:us)%",
}
"""The format in docs/kubernetes.md."""
Place = tuple[str, int]
"""The name and the port of a Service."""


def typed(kind: str, /, **fields: object) -> Json:
    return {"@type": _TYPES + kind, **fields}


def places(routes: Iterable[Json]) -> set[Place]:
    """The Services that the routes name."""
    return {
        (ref["name"], ref["port"]) for route in routes for rule in _rules(route) for ref in _backends(rule)
    }


def cluster(place: Place, addresses: Iterable[Place]) -> Json:
    """`addresses`: of the ready pods, with their ports."""
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}
        for host, port in sorted(addresses)
    ]
    name = _cluster_name(place)
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 65_536)
    options = {
        "common_http_protocol_options": {"idle_timeout": "4s"},
        "explicit_http_config": {"http_protocol_options": {}},
    }
    return typed(
        "envoy.config.cluster.v3.Cluster",
        name=name,
        type="STATIC",
        connect_timeout="1s",
        load_assignment={"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
        circuit_breakers={"thresholds": [limits]},
        typed_extension_protocol_options={_PROTOCOL: typed(_PROTOCOL, **options)},
    )


def route_table(routes: Iterable[Json]) -> Json:
    """One virtual host for all names; longer path prefixes first."""
    entries = [
        made
        for route in routes
        for place, rule in enumerate(_rules(route))
        for made in _of_rule(rule, _rule_name(route, place))
    ]
    entries.sort(key=lambda entry: -len(entry["match"]["prefix"]))
    hosts = [{"name": "all", "domains": ["*"], "routes": entries}]
    return typed("envoy.config.route.v3.RouteConfiguration", name="main", virtual_hosts=hosts)


def _rule_name(route: Json, place: int) -> str:
    """As Envoy Gateway names it."""
    metadata = route["metadata"]
    return f"httproute/{metadata.get('namespace', 'default')}/{metadata['name']}/rule/{place}"


def _of_rule(rule: Json, name: str) -> Iterable[Json]:
    weights = {_cluster_name((ref["name"], ref["port"])): ref.get("weight", 1) for ref in _backends(rule)}
    prefixes = [match.get("path", {}).get("value", "/") for match in rule.get("matches") or ()] or ["/"]
    for place, prefix in enumerate(prefixes):
        route = {"name": f"{name}/match/{place}/*", "match": {"prefix": prefix}}
        if sum(weights.values()):
            yield {**route, "route": _to(weights)}
        else:
            yield {**route, "direct_response": {"status": 500}}


def _to(weights: Mapping[str, int]) -> Json:
    chosen = [{"name": name, "weight": weight} for name, weight in weights.items() if weight]
    return {
        "weighted_clusters": {"clusters": chosen},
        "timeout": "0s",
        "idle_timeout": "3600s",
        "retry_policy": _RETRY,
    }


def bootstrap(home: str, host: str, port: int, records: str = "") -> Json:
    """`records`: the address that gets the access log; empty: none is kept."""

    def file(kind: str) -> Json:
        source = {"path": f"{home}/{kind}.json", "watched_directory": {"path": home}}
        return {"resource_api_version": "V3", "path_config_source": source}

    router = typed("envoy.extensions.filters.http.router.v3.Router")
    manager = typed(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="ingress",
        stream_idle_timeout="3600s",
        rds={"route_config_name": "main", "config_source": file("rds")},
        http_filters=[{"name": "envoy.filters.http.router", "typed_config": router}],
        access_log=[_access_log()] if records else [],
    )
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    listener = {
        "name": "ingress",
        "address": {"socket_address": {"address": host, "port_value": port}},
        "filter_chains": [{"filters": filters}],
    }
    return {
        "node": {"id": "gate", "cluster": "gate"},
        "admin": {"address": {"pipe": {"path": f"{home}/admin.sock", "mode": 0o600}}},
        "dynamic_resources": {"cds_config": file("cds")},
        "static_resources": {
            "listeners": [listener],
            "clusters": [_records_cluster(records)] if records else [],
        },
    }


def _access_log() -> Json:
    """As Envoy Gateway renders a setting of the format JSON with a sink of the type OpenTelemetry."""
    attributes = {"k8s.namespace.name": "gateways", "k8s.pod.name": "gate-0", **ACCESS_LOG}
    values = [{"key": key, "value": {"string_value": value}} for key, value in attributes.items()]
    kind = "envoy.extensions.access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig"
    config = typed(
        kind,
        common_config={
            "log_name": "otel_envoy_accesslog",
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": RECORDS, "authority": "flettner-records.chat"}},
        },
        body={"string_value": "%REQ(:METHOD)% %RESPONSE_CODE%"},
        attributes={"values": values},
    )
    return {"name": "envoy.access_loggers.open_telemetry", "typed_config": config}


def _records_cluster(address: str) -> Json:
    """A name that is resolved again and again, spoken to by HTTP/2."""
    host, _, port = address.rpartition(":")
    place = {"socket_address": {"address": host, "port_value": int(port)}}
    return {
        "name": RECORDS,
        "type": "STRICT_DNS",
        "dns_refresh_rate": "1s",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": RECORDS,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": place}}]}],
        },
        "typed_extension_protocol_options": {
            _PROTOCOL: typed(_PROTOCOL, explicit_http_config={"http2_protocol_options": {}})
        },
    }


def _rules(route: Json) -> list[Json]:
    return list(route["spec"].get("rules") or ())


def _backends(rule: Json) -> list[Json]:
    return list(rule.get("backendRefs") or ())


def _cluster_name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"
