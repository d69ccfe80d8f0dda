"""Host and Origin headers are parsed like a browser does, or refused."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.agent.api.middleware import host_of, is_own

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,10}(\.[A-Za-z0-9_-]{1,10}){0,3}", fullmatch=True)
V6 = st.ip_addresses(v=6).map(lambda address: f"[{address}]")
HOSTS = NAMES | st.ip_addresses(v=4).map(str) | V6
PORTS = st.none() | st.integers(0, 65535)


def joined(host: str, port: int | None) -> str:
    return host if port is None else f"{host}:{port}"


@given(HOSTS, PORTS)
def test_parses_the_host_without_its_port(host: str, port: int | None) -> None:
    assert host_of(joined(host, port)) == host.lower()


@given(st.text(max_size=30) | st.text("[]:.@/\\ \t\r\n\x00a1", max_size=12))
def test_parsed_host_is_always_part_of_the_header(text: str) -> None:
    host = host_of(text)

    assert host is None or (text.lower().startswith(host) and not set(host) & set("@/\\ \t\r\n\x00"))


@given(HOSTS, HOSTS, PORTS, PORTS, st.sampled_from(["http", "https", "HTTP"]))
def test_same_origin_requires_the_same_host_and_port(
    page: str, host: str, page_port: int | None, port: int | None, scheme: str
) -> None:
    same = joined(page, page_port).lower() == joined(host, port).lower()

    assert is_own(f"{scheme}://{joined(page, page_port)}", joined(host, port)) == same


@given(st.text(max_size=30), st.text(max_size=30))
def test_rejects_every_foreign_origin(origin: str, host: str) -> None:
    assert not is_own(origin, host) or origin.lower().endswith(f"://{host.lower()}")


@pytest.mark.parametrize(
    "origin",
    [
        "null", "", "localhost:8090", "//localhost:8090", "file://localhost:8090", "http://localhost:8090/",
        "http://localhost:80901", "http://a@localhost:8090", "http://localhost", "http://localhost.:8090",
        "chrome-extension://localhost:8090", "http://localhost:8090 http://evil.example",
    ],
)  # fmt: skip
def test_rejects_an_origin_that_resembles_the_own_one(origin: str) -> None:
    assert not is_own(origin, "localhost:8090")


def test_treats_another_address_notation_as_another_host() -> None:
    assert ipaddress.ip_address("127.0.0.1").is_loopback
    assert {host_of("2130706433"), host_of("0x7f.1"), host_of("127.1")}.isdisjoint({"127.0.0.1"})
