"""Records of a gateway's access log: whose they are, and what they must have."""

import pytest

from flettner.agent.domain.errors import SensorError
from flettner.sensors.proxy_requests.access_log import classify
from flettner.sensors.proxy_requests.gateway_records import (
    KEPT_S,
    RouteNames,
    ServerAddresses,
    has_lost_its_server,
    read_record,
)

RECORD = {
    "route_name": "httproute/chat/llm/rule/0/match/0/*",
    "upstream_host": "10.0.0.7:8000",
    "upstream_cluster": "httproute/chat/llm/rule/0",
    "path": "/v1/completions?a=b",
    "response_code": "200",
    "response_flags": "-",
    "duration": "1200",
    "first_byte_us": "340000",
}


@pytest.fixture
def addresses() -> ServerAddresses:
    addresses = ServerAddresses()
    addresses.update("blue", "vllm.chat.svc:8000", ("10.0.0.7:8000", "10.0.0.8:8000"), 0.0)
    addresses.update("green", "flettner-r1.chat.svc:8000", ("10.0.0.9:8000",), 0.0)
    return addresses


@pytest.mark.parametrize(
    ("name", "rule", "ours"),
    [
        ("httproute/chat/llm/rule/0/match/0/*", "", True),
        ("httproute/chat/llm/rule/0/match/0/api_example_org", "0", True),
        ("httproute/chat/llm/rule/1/match/0/*", "0", False),
        ("httproute/chat/llm/rule/10/match/0/*", "1", False),
        ("httproute/chat/llm/rule/3/match/0/*", "main", True),  # Envoy Gateway names places only
        ("httproute/chat/llm-2/rule/0/match/0/*", "", False),
        ("httproute/other/llm/rule/0/match/0/*", "", False),
        ("grpcroute/chat/llm/rule/0/match/0/*", "", False),
        ("chat.llm.0", "", True),
        ("chat.llm.1", "0", False),
        ("chat.llm.1", "1", True),
        ("chat.llm-2.1", "1", False),
        ("chat.llm.x", "", False),
        ("main", "main", True),
        ("main", "", False),
        ("0", "0", False),
        ("-", "", False),
        ("", "", False),
    ],
)
def test_the_routes_of_one_httproute_are_known_by_name(name: str, rule: str, ours: bool) -> None:
    assert RouteNames(namespace="chat", route="llm", rule=rule).include(name) is ours


@pytest.mark.parametrize(
    ("host", "cluster", "server"),
    [
        ("10.0.0.7:8000", "-", "blue"),
        ("10.0.0.9:8000", "-", "green"),
        ("10.0.0.9:8001", "-", "green"),  # another port of the same pod
        ("10.0.0.1:8000", "-", ""),
        ("-", "httproute/chat/llm/rule/0", ""),
        ("-", "outbound|8000||flettner-r1.chat.svc.cluster.local", "green"),
        ("-", "outbound|8000||flettner-r1.other.svc.cluster.local", ""),
        ("-", "outbound|8000|v1|vllm.chat.svc.cluster.local", "blue"),
    ],
)
def test_a_record_is_of_the_server_whose_pod_or_service_it_names(
    addresses: ServerAddresses, host: str, cluster: str, server: str
) -> None:
    assert addresses.server_of(host, cluster) == server


def test_pods_of_two_servers_on_one_host_are_told_apart_by_their_ports() -> None:
    addresses = ServerAddresses()
    addresses.update("blue", "127.0.0.1:8001", ("127.0.0.1:8001",), 0.0)
    addresses.update("green", "127.0.0.1:8002", ("127.0.0.1:8002",), 0.0)

    assert addresses.server_of("127.0.0.1:8002", "-") == "green"
    assert addresses.server_of("127.0.0.1:8003", "-") == ""


def test_an_address_is_forgotten_long_after_its_pod(addresses: ServerAddresses) -> None:
    addresses.update("blue", "vllm.chat.svc:8000", ("10.0.0.8:8000",), KEPT_S - 1)
    before = addresses.server_of("10.0.0.7:8000", "-")
    addresses.update("blue", "vllm.chat.svc:8000", ("10.0.0.8:8000",), KEPT_S + 1)

    assert (before, addresses.server_of("10.0.0.7:8000", "-")) == ("blue", "")


def test_an_address_that_another_server_has_now_is_that_servers(addresses: ServerAddresses) -> None:
    addresses.update("green", "flettner-r1.chat.svc:8000", ("10.0.0.7:8000",), 5.0)

    assert addresses.server_of("10.0.0.7:8000", "-") == "green"


def test_the_numbers_of_a_record(addresses: ServerAddresses) -> None:
    record = read_record(RECORD, addresses)

    assert (record.server, record.path, record.code) == ("blue", "/v1/completions", 200)
    assert (record.duration_s, record.ttft_s) == (1.2, 0.34)
    assert classify(record, record) == "ok"


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({"response_code": "503", "response_flags": "UF", "first_byte_us": "-"}, "failed"),
        ({"response_code": "0", "response_flags": "DC", "first_byte_us": "-"}, "gave_up"),
        ({"response_code": "429"}, "refused"),
        ({"response_flags": "UC"}, "truncated"),
        ({"response_flags": "DC"}, "gave_up"),
    ],
)
def test_codes_and_flags_tell_the_outcome(
    addresses: ServerAddresses, change: dict[str, str], outcome: str
) -> None:
    record = read_record({**RECORD, **change}, addresses)

    assert classify(record, record) == outcome


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"response_code": None}, "without response_code"),
        ({"duration": None}, "without duration"),
        ({"duration": "soon"}, "whose duration"),
        ({"duration": "-5"}, "not a duration"),
        ({"duration": "nan"}, "not a duration"),
        ({"first_byte_us": None}, "Envoy has it from 1.37 on"),
        ({"first_byte_us": "-"}, "Envoy has it from 1.37 on"),
    ],
)
def test_a_record_that_lacks_something_is_not_counted(
    addresses: ServerAddresses, change: dict[str, str | None], what: str
) -> None:
    fields = {key: value for key, value in {**RECORD, **change}.items() if value is not None}

    with pytest.raises(SensorError, match=what):
        read_record(fields, addresses)


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({}, False),
        ({"upstream_host": "10.9.9.9:8000"}, True),
        ({"upstream_host": "-", "response_code": "503", "response_flags": "UH"}, True),
        ({"upstream_host": "-", "response_code": "0", "response_flags": "DC"}, False),
        ({"upstream_host": "-", "response_code": "429", "response_flags": "RL"}, False),
    ],
)
def test_a_failure_of_no_known_server_is_a_gap(
    addresses: ServerAddresses, change: dict[str, str], *, lost: bool
) -> None:
    fields = {**RECORD, **change}

    assert has_lost_its_server(read_record(fields, addresses), fields) is lost
