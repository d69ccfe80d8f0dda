"""The client's address: the peer's, or what trusted proxies say."""

from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_network

import pytest
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request
from aiohttp.web import Application
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from structlog.testing import capture_logs

from flettner.agent.api.app import build_app
from flettner.agent.api.client_address import FORWARDED, ClientAddresses, group_of
from flettner.agent.api.rate_limits import RateLimits
from flettner.agent.api.tokens import Tokens
from flettner.agent.config.listen import Role
from flettner.primitives.address import parse_ip
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client

PROXY = "127.0.0.1"  # of every request here
TRUSTED = [ip_network(each) for each in ("127.0.0.1", "10.0.0.0/8", "fd00::/8")]


def client_of(*headers: str, trusted: Sequence[str] | None = None) -> str:
    networks = TRUSTED if trusted is None else [ip_network(each) for each in trusted]
    sent = CIMultiDict((FORWARDED, header) for header in headers)
    request = make_mocked_request("GET", "/", headers=sent).clone(remote=PROXY)
    return str(ClientAddresses(networks).find(request))


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ([], PROXY),
        (["203.0.113.7"], "203.0.113.7"),
        (["198.51.100.1, 203.0.113.7"], "203.0.113.7"),
        (["198.51.100.1", "203.0.113.7"], "203.0.113.7"),
        (["203.0.113.7, 10.1.2.3"], "203.0.113.7"),
        (["203.0.113.7 ,fd00::2,\t10.1.2.3 "], "203.0.113.7"),
        (["10.1.2.3"], "10.1.2.3"),
        (["2001:db8::1"], "2001:db8::1"),
        (["::ffff:203.0.113.7"], "203.0.113.7"),
        (["203.0.113.7:51234"], "203.0.113.7"),
        (["[2001:db8::1]:443"], "2001:db8::1"),
        (["unknown"], PROXY),
        (["203.0.113.7, _hidden, 10.1.2.3"], "10.1.2.3"),
        (["203.0.113.7,"], PROXY),
        (["fe80::1%\u202eann"], PROXY),
        (["203.0.113.7, " + "10.1.2.3, " * 5000 + "10.1.2.3"], "10.1.2.3"),
    ],
)
def test_the_nearest_foreign_address_counts(headers: Sequence[str], client: str) -> None:
    assert client_of(*headers) == client


def test_the_header_of_others_says_nothing() -> None:
    assert client_of("203.0.113.7", trusted=[]) == PROXY
    assert client_of("203.0.113.7", trusted=["10.0.0.0/8"]) == PROXY


@given(st.lists(st.text(max_size=60), max_size=4))
def test_any_header_gives_an_address(headers: list[str]) -> None:
    assert parse_ip(client_of(*headers)) is not None


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("203.0.113.7", "from 203.0.113.7"),
        ("2001:db8:0:1::1", "from 2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff::2", "from 2001:db8:0:1::/64"),
        ("::ffff:203.0.113.7", "from 203.0.113.7"),
        ("", "from the unix socket"),
    ],
)
def test_a_site_with_ipv6_is_one_client(address: str, group: str) -> None:
    assert group_of(parse_ip(address)) == group


@pytest.fixture
async def behind_proxy(daemon: FakeDaemonView, tokens: Tokens) -> AsyncIterator[Client]:
    limits = RateLimits(lambda: 0.0, burst=2.0)
    app: Application = build_app(daemon, tokens, limits=limits, trusted_proxies=[ip_network(PROXY)])
    async with TestClient(TestServer(app)) as client:
        yield client


async def status(client: Client, path: str, headers: dict[str, str]) -> int:
    async with client.get(path, headers=headers) as answer:
        await answer.read()
        return answer.status


async def test_a_flood_from_one_client_refuses_no_other_behind_the_proxy(
    daemon: FakeDaemonView, bearers: dict[Role, dict[str, str]], behind_proxy: Client
) -> None:
    flood = {FORWARDED: "203.0.113.7", "Authorization": "Bearer wrong"}
    other = {FORWARDED: "203.0.113.8"}

    assert [await status(behind_proxy, "/v1/targets", flood) for _ in range(4)] == [401, 401, 429, 429]
    assert await status(behind_proxy, "/v1/targets", other) == 401
    assert await status(behind_proxy, "/v1/targets", flood | bearers["viewer"]) == 200
    assert daemon.attempts == [{"from 203.0.113.7, an unknown token": 1}]


async def test_a_proxy_that_the_config_lacks_is_named_once(daemon: FakeDaemonView, tokens: Tokens) -> None:
    with capture_logs() as logged:
        async with TestClient(TestServer(build_app(daemon, tokens))) as client:
            for headers in ({}, {FORWARDED: "203.0.113.7"}, {FORWARDED: "203.0.113.8"}):
                await status(client, "/v1/targets", headers)

    (warning,) = [entry for entry in logged if entry["event"] == "api.proxy_not_trusted"]
    assert (warning["peer"], "trusted_proxies" in warning["hint"]) == (PROXY, True)
    assert "203.0.113" not in str(logged)


async def test_a_client_behind_a_proxy_of_this_host_is_not_local(behind_proxy: Client) -> None:
    assert await status(behind_proxy, "/healthz", {FORWARDED: "203.0.113.7"}) == 401
    assert await status(behind_proxy, "/healthz", {FORWARDED: "::1"}) == 200
    assert await status(behind_proxy, "/healthz", {}) == 200
