"""Envoy's configuration as data: its listener, its clusters, and the access log of each request.

All figures were measured with Envoy 1.40. The files are JSON, because YAML turns some names into booleans.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path

from flettner.actuators.envoy import hold
from flettner.actuators.envoy.split import NAMESPACE, Json
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.clients.envoy_records.record import (
    ATTEMPTS,
    REQUESTS,
    cluster_name,
    format_attempts,
    format_requests,
    records_socket,
    server_of_cluster,
    tag_of,
)
from flettner.primitives.address import Address, parse_ip
from flettner.vllm_facts.closed_routes import CLOSED_ROUTES

LUA = Path(__file__).with_name("ingress.lua")
CLIENT_LUA = Path(__file__).with_name("client.lua")
TYPES = "type.googleapis.com/"
BUFFER_BYTES = 1 << 20
IDLE = "3600s"  # silence within a request; prefill of a long prompt is silence
CROWD_CONNECTS = (
    "10s"  # all that waited connect at once: a full backlog makes the kernel ask again at 1, 3, 7 s
)
NO_LIMIT = 65_536  # Envoy's default is 1,024: the next stream would be a 503

LONGEST_PATH = 4096  # bytes, with the query; the paths of vLLM's API have less than 200
HEADERS_KB = 32  # of one request, all together; Envoy's default is 60. A token of a client has 2 to 8
HEADERS_WITHIN = "30s"  # from the first byte of a request to the end of its headers

ID_HEADER = "x-flettner-request"  # carries it to the log of attempts, which has no other way to it
CLIENT_HEADER = "x-flettner-client"  # likewise; the Lua filter sets it


def typed(kind: str, /, **fields: object) -> Json:
    """A resource with its type URL."""
    return {"@type": TYPES + kind, **fields}


def _file(path: Path) -> Json:
    source = {"path": str(path), "watched_directory": {"path": str(path.parent)}}
    return {"resource_api_version": "V3", "path_config_source": source}


def response(version: str, *resources: Json) -> bytes:
    """One xDS file. Envoy reports `version` once the file is in force."""
    return json.dumps({"version_info": version, "resources": resources}, indent=1).encode()


def bootstrap(home: Path) -> bytes:
    """The start configuration; everything that changes is in other files below `home`."""
    sink = {"address": {"pipe": {"path": str(records_socket(home))}}}
    limit = typed(
        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=20_000,
    )
    name = "envoy.resource_monitors.global_downstream_max_connections"
    return json.dumps(
        {
            "node": {"id": NAMESPACE, "cluster": NAMESPACE},
            "admin": {"address": {"pipe": {"path": str(home / "admin.sock"), "mode": 0o600}}},
            "stats_flush_interval": "1s",
            "dynamic_resources": {
                "cds_config": _file(home / "xds" / "cds.json"),
                "lds_config": _file(home / "xds" / "lds.json"),
            },
            # static: a listener whose log names a dynamic cluster is refused
            "static_resources": {
                "clusters": [
                    {
                        "name": "records",
                        "type": "STATIC",
                        "connect_timeout": "1s",
                        "load_assignment": {
                            "cluster_name": "records",
                            "endpoints": [{"lb_endpoints": [{"endpoint": sink}]}],
                        },
                    },
                    hold.nowhere(),
                ]
            },
            "overload_manager": {"resource_monitors": [{"name": name, "typed_config": limit}]},
        },
        indent=1,
    ).encode()


def _log(tag: str, record: Mapping[str, str]) -> Json:
    return {
        "name": "envoy.access_loggers.fluentd",
        "typed_config": typed(
            "envoy.extensions.access_loggers.fluentd.v3.FluentdAccessLogConfig",
            cluster="records",
            tag=tag,
            stat_prefix="records",
            buffer_flush_interval="0.25s",
            buffer_size_bytes=65_536,
            record=record,
        ),
    }


def listener(
    routes: Path,
    *,
    target: str,
    listen: Address,
    report_every_s: float,
    session_header: str,
    open_routes: Collection[str] = (),
) -> Json:
    """The client port of a target. A change of weights, which is in the file `routes`, never touches it.

    `open_routes`: those of `CLOSED_ROUTES` that clients may call.
    """
    lua = typed(
        "envoy.extensions.filters.http.lua.v3.Lua",
        default_source_code={"inline_string": _script(session_header, open_routes)},
    )
    router = typed(
        "envoy.extensions.filters.http.router.v3.Router",
        suppress_envoy_headers=True,
        upstream_log=[_log(tag_of(target, ATTEMPTS), format_attempts(ID_HEADER, CLIENT_HEADER))],
    )
    connections = typed(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="ingress",
        use_remote_address=True,  # strips x-envoy-* that clients send
        preserve_external_request_id=True,
        server_header_transformation="PASS_THROUGH",
        stream_idle_timeout=IDLE,
        request_timeout="0s",
        request_headers_timeout=HEADERS_WITHIN,
        max_request_headers_kb=HEADERS_KB,
        upgrade_configs=[{"upgrade_type": "websocket"}],
        rds={"route_config_name": target, "config_source": _file(routes)},
        access_log_options={"access_log_flush_interval": f"{report_every_s}s"},
        access_log=[_log(tag_of(target, REQUESTS), format_requests(NAMESPACE, CLIENT_HEADER))],
        local_reply_config=hold.local_replies(),
        http_filters=[
            *hold.filters(),
            {"name": NAMESPACE, "typed_config": lua},
            {"name": "envoy.filters.http.router", "typed_config": router},
        ],
    )
    return _with_digest(
        "envoy.config.listener.v3.Listener",
        name=target,
        address=_socket_address(listen),
        per_connection_buffer_limit_bytes=BUFFER_BYTES,
        filter_chains=[
            {
                "filters": [
                    {"name": "envoy.filters.network.http_connection_manager", "typed_config": connections}
                ]
            }
        ],
    )


def _script(session_header: str, open_routes: Collection[str]) -> str:
    """The Lua filter, with the paths that it refuses."""
    closed = ", ".join(f'["{name}"] = true' for name in CLOSED_ROUTES if name not in open_routes)
    names = f'local CLIENT_HEADER, SESSION_HEADER = "{CLIENT_HEADER}", "{session_header.lower()}"\n'
    limits = f"local CLOSED = {{{closed}}}\nlocal LONGEST_PATH = {LONGEST_PATH}\n"
    return f"{limits}{names}{CLIENT_LUA.read_text()}\n{LUA.read_text()}"


def _with_digest(kind: str, /, **fields: object) -> Json:
    """A resource with its digest as metadata: Envoy reports the fields in another form than it read them."""
    digest = hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]
    return typed(kind, **fields, metadata={"filter_metadata": {NAMESPACE: {"digest": digest}}})


def digest_of(resource: Json) -> str:
    """Empty without one."""
    metadata = resource.get("metadata", {}).get("filter_metadata", {}).get(NAMESPACE, {})
    return str(metadata.get("digest", ""))


def _socket_address(address: Address) -> Json:
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def server_of(cluster: Json) -> str:
    """Raises KeyError without a name."""
    return server_of_cluster(str(cluster["name"]))


def cluster(server: Server, *, target: str, alias: str = "") -> Json:
    """One server. No health checks and no ejection: both turn a retried failure into a final one.

    With an `alias` it has that name; logs and counters still name the server.
    """
    try:
        address = Address.parse(server.address, least_port=1)
    except ValueError as error:
        raise ActError(f"cannot route to {server.name}: {error}") from error
    endpoint = {"address": _socket_address(address)}
    http = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    name = cluster_name(target, alias or server.name)
    counted = {"alt_stat_name": cluster_name(target, server.name)} if alias else {}
    return _with_digest(
        "envoy.config.cluster.v3.Cluster",
        name=name,
        **counted,
        type="STRICT_DNS" if parse_ip(address.host) is None else "STATIC",
        dns_lookup_family="V4_PREFERRED",
        dns_failure_refresh_rate={"base_interval": "0.2s", "max_interval": "2s"},
        connect_timeout=CROWD_CONNECTS if alias else "1s",
        per_connection_buffer_limit_bytes=BUFFER_BYTES,
        load_assignment={
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
        },
        circuit_breakers={
            "thresholds": [
                {
                    "max_connections": NO_LIMIT,
                    "max_pending_requests": NO_LIMIT,
                    "max_requests": NO_LIMIT,
                    "max_retries": NO_LIMIT,  # a retry counts until its stream ends
                }
            ]
        },
        typed_extension_protocol_options={
            http: typed(
                http,
                common_http_protocol_options={"idle_timeout": "4s"},  # uvicorn closes at 5 s
                explicit_http_config={"http_protocol_options": {}},
            )
        },
    )


def address_of(cluster: Json) -> str:
    """HOST:PORT of a cluster that flettner wrote."""
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    written = endpoint["address"]["socket_address"]
    return str(Address(written["address"], written["port_value"]))
