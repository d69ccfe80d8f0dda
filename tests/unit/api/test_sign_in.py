"""Signing in to the console at an identity provider, which a server on this host stands in for."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from aiohttp import ClientResponse, ClientSession, CookieJar, TCPConnector
from aiohttp.test_utils import TestServer

from flettner.agent.api.app import build_app
from flettner.agent.api.client_address import FORWARDED
from flettner.agent.api.idempotency import HEADER
from flettner.agent.api.rate_limits import BURST, RateLimits
from flettner.agent.api.sign_in import (
    ATTEMPT_S,
    CALLBACK,
    CONSOLE,
    MOST_EXCHANGES_AT_ONCE,
    MOST_REFUSED_AT_ONCE,
    MOST_SESSIONS_EACH,
    OFFER,
    SIGN_IN,
    SIGNING_IN,
    SignIn,
)
from flettner.agent.api.tokens import Tokens
from flettner.authenticators.oidc import Oidc
from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.identity_provider import DAY_S, FOREIGN, NOW, SECRET, IdentityProvider, identity_provider

FROM_CONSOLE = {CONSOLE: "1", "Sec-Fetch-Site": "same-origin"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
FLOOD = {FORWARDED: "203.0.113.66"}
HOUR_S = 3600.0


@dataclass(kw_only=True)
class Site:
    """The API of a daemon whose people sign in at `provider`."""

    url: str
    daemon: FakeDaemonView
    provider: IdentityProvider
    sign_in: SignIn
    now_s: float = 0.0

    def shift_clock(self, by_s: float) -> None:
        self.now_s += by_s


class Browser:
    """Keeps cookies and follows no redirect by itself."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.session = ClientSession(cookie_jar=CookieJar(unsafe=True), connector=TCPConnector(limit=0))

    async def get(self, address: str, headers: Mapping[str, str] | None = None) -> ClientResponse:
        url = address if address.startswith("http") else self.site.url + address
        async with self.session.get(url, headers=headers, allow_redirects=False) as answer:
            await answer.read()
            return answer

    async def post(self, path: str, headers: Mapping[str, str], body: object = None) -> ClientResponse:
        async with self.session.post(self.site.url + path, json=body, headers=headers) as answer:
            await answer.read()
            return answer

    async def leave(self, to: str = "/targets") -> str:
        """Start a sign-in, and sign in at the provider; returns the address that it sends back to."""
        begun = await self.get(f"{SIGN_IN}?{urlencode({'to': to})}", {"Sec-Fetch-Site": "same-origin"})
        assert begun.status == 303, await begun.text()
        return (await self.get(begun.headers["Location"])).headers["Location"]

    async def sign_in(self, to: str = "/targets") -> ClientResponse:
        address = await self.leave(to)
        strict = self.site.sign_in.cookies.session  # a browser does not send it with a link of another site
        self.session.cookie_jar.clear(lambda cookie: cookie.key == strict)
        return await self.get(address, LINK)

    async def me(self) -> ClientResponse:
        return await self.get("/v1/me", FROM_CONSOLE)


@pytest.fixture
async def site(daemon: FakeDaemonView, tokens: Tokens, tmp_path: Path) -> AsyncIterator[Site]:
    (tmp_path / "client.secret").write_text(SECRET + "\n")
    async with identity_provider() as provider:
        oidc = Oidc(
            issuer=provider.issuer,
            groups={"sre": "operator", "all": "viewer"},
            client_secret_file=str(tmp_path / "client.secret"),
        )
        app = build_app(
            daemon,
            tokens,
            authenticators={"oidc": oidc},
            public_url="http://127.0.0.1",
            trusted_proxies=[ip_network("127.0.0.1")],
            limits=RateLimits(lambda: 0.0),
            heartbeat_s=0.05,
        )
        async with TestServer(app) as server:
            sign_in = app[SIGNING_IN]
            assert sign_in is not None
            url = str(server.make_url("")).rstrip("/")
            sign_in.public_url = url
            site = Site(url=url, daemon=daemon, provider=provider, sign_in=sign_in)
            sign_in.clock = sign_in._exchanges.now = sign_in._refused.now = lambda: site.now_s
            yield site


@pytest.fixture
async def browser(site: Site) -> AsyncIterator[Browser]:
    browser = Browser(site)
    yield browser
    await browser.session.close()


@pytest.fixture
async def other(site: Site) -> AsyncIterator[Browser]:
    browser = Browser(site)
    yield browser
    await browser.session.close()


async def test_a_person_signs_in_and_decides_in_their_own_name(site: Site, browser: Browser) -> None:
    before = await browser.me()

    back = await browser.sign_in("/suggestions/chat-s1")

    assert (before.status, before.headers[OFFER]) == (401, "127.0.0.1")
    assert (back.status, back.headers["Location"]) == (303, "/#/suggestions/chat-s1")
    me = await browser.me()
    document: dict[str, Any] = await me.json()
    assert (document["principal"], document["role"]) == ("oidc ann", "operator")
    assert document["session_ends"] is not None
    paused = await browser.post("/v1/targets/chat/pause", FROM_CONSOLE, {"reason": "a test"})
    assert paused.status == 200
    assert "paused by oidc ann" in site.daemon.targets()["chat"].state.note


async def test_the_provider_is_asked_as_the_standard_says(site: Site, browser: Browser) -> None:
    begun = await browser.get(SIGN_IN)

    asked = parse_qs(urlsplit(begun.headers["Location"]).query)
    assert begun.headers["Location"].startswith(f"{site.provider.issuer}/authorize?")
    assert {name: value for name, (value,) in asked.items() if name not in {"state", "nonce"}} == {
        "response_type": "code",
        "client_id": "flettner",
        "redirect_uri": f"{site.url}{CALLBACK}",
        "scope": "openid email groups",
        "code_challenge": asked["code_challenge"][0],
        "code_challenge_method": "S256",
    }
    assert min(len(asked[name][0]) for name in ("state", "nonce", "code_challenge")) == 43


async def test_cookies_are_hidden_from_scripts_and_other_sites(site: Site, browser: Browser) -> None:
    site.sign_in.public_url = "https://flettner.example.org"
    begun = await browser.get(SIGN_IN)
    site.sign_in.public_url = site.url
    plain = await browser.sign_in()

    assert begun.headers["Set-Cookie"].startswith("__Host-flettner-sign-in=")
    assert begun.headers["Set-Cookie"].endswith("; HttpOnly; Max-Age=600; Path=/; SameSite=Lax; Secure")
    session, cleared = plain.headers.getall("Set-Cookie")
    assert session.startswith("flettner=")
    assert session.endswith("; HttpOnly; Max-Age=28800; Path=/; SameSite=Strict")
    assert cleared.startswith('flettner-sign-in=""; HttpOnly; Max-Age=0')


async def refused(site: Site, answer: ClientResponse, why: str, browser: Browser) -> None:
    """Refused with its reason, audited, and without a session."""
    text = await answer.text()
    assert (answer.status, why in text) == (403, True), text
    assert [kind for attempts in site.daemon.attempts for kind in attempts if why in kind]
    assert not [
        cookie for cookie in answer.headers.getall("Set-Cookie", []) if cookie.startswith("flettner=")
    ]
    assert (await browser.me()).status == 401


async def test_a_forged_state_is_refused(site: Site, browser: Browser) -> None:
    address = urlsplit(await browser.leave())
    query = {name: value for name, (value,) in parse_qs(address.query).items()} | {"state": "x" * 43}

    answer = await browser.get(f"{CALLBACK}?{urlencode(query)}", LINK)

    await refused(site, answer, "this sign-in is unknown", browser)


async def test_a_replayed_code_is_refused(browser: Browser, other: Browser) -> None:
    """For the attempt that had it, and by the provider for another one."""
    address = await browser.leave()
    kept = {cookie.key: cookie.value for cookie in browser.session.cookie_jar}
    first = await browser.get(address, LINK)
    browser.session.cookie_jar.update_cookies(kept)
    code = parse_qs(urlsplit(address).query)["code"][0]
    own = {name: value for name, (value,) in parse_qs(urlsplit(await other.leave()).query).items()}

    again = await browser.get(address, LINK)
    stolen = await other.get(f"{CALLBACK}?{urlencode(own | {'code': code})}", LINK)

    assert first.status == 303
    assert (again.status, "used before" in await again.text()) == (403, True)
    assert (stolen.status, "refused the code" in await stolen.text()) == (403, True)
    assert (await other.me()).status == 401


async def test_a_code_of_another_attempt_is_refused(site: Site, browser: Browser, other: Browser) -> None:
    """PKCE: the code of one attempt has no use with the verifier of another one."""
    code = parse_qs(urlsplit(await browser.leave()).query)["code"][0]
    own = {name: value for name, (value,) in parse_qs(urlsplit(await other.leave()).query).items()}

    answer = await other.get(f"{CALLBACK}?{urlencode(own | {'code': code})}", LINK)

    await refused(site, answer, "the provider refused the code", other)


async def test_a_sign_in_of_another_browser_is_refused(site: Site, browser: Browser, other: Browser) -> None:
    """Nobody can be signed in as the attacker by a link, nor the attacker by a stolen one."""
    address = await browser.leave()

    answer = await other.get(address, LINK)

    await refused(site, answer, "another browser", other)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        pytest.param({"nonce": "another"}, "of another sign-in", id="nonce"),
        pytest.param({"nonce": None}, "of another sign-in", id="no nonce"),
        pytest.param({"aud": "another service"}, "is not valid", id="audience"),
        pytest.param({"aud": ["flettner", "b"], "azp": "b"}, "another client", id="authorized party"),
        pytest.param({"iss": "https://login.example.com"}, "is not valid", id="issuer"),
        pytest.param({"exp": NOW - DAY_S}, "is not valid", id="late token"),
        pytest.param({"key": FOREIGN}, "is not valid", id="signature"),
        pytest.param({"groups": ["others"]}, "no role here", id="no group"),
        pytest.param({"sub": "ann\u202e"}, "no role here", id="a name that cannot be shown"),
    ],
)
async def test_other_tokens_and_people_are_refused(
    site: Site, browser: Browser, claims: dict[str, Any], why: str
) -> None:
    site.provider.person = claims

    answer = await browser.sign_in()

    await refused(site, answer, why, browser)


async def test_a_late_sign_in_is_refused(site: Site, browser: Browser) -> None:
    address = await browser.leave()
    site.shift_clock(ATTEMPT_S + 1)

    answer = await browser.get(address, LINK)

    await refused(site, answer, "longer than 10 minutes", browser)


async def test_an_answer_of_another_provider_is_refused(site: Site, browser: Browser) -> None:
    query = {name: value for name, (value,) in parse_qs(urlsplit(await browser.leave()).query).items()}

    answer = await browser.get(f"{CALLBACK}?{urlencode(query | {'iss': 'https://evil.example'})}", LINK)

    await refused(site, answer, "another provider", browser)


@pytest.mark.parametrize(
    ("error", "shown"),
    [("access_denied", "access_denied"), ("<b>", "unknown error"), ("call_eve", "unknown error")],
)
async def test_a_refusal_by_the_provider_is_shown(
    site: Site, browser: Browser, error: str, shown: str
) -> None:
    site.provider.refuses = error

    answer = await browser.sign_in()

    assert "<b>" not in await answer.text()
    await refused(site, answer, shown, browser)


@pytest.mark.parametrize(
    "to", ["https://evil.example/", "evil", "", "/a b", "/\r\nSet-Cookie: x=1", "javascript:alert(1)"]
)
async def test_a_place_that_is_no_page_of_the_console_is_refused(browser: Browser, to: str) -> None:
    assert (await browser.get(f"{SIGN_IN}?{urlencode({'to': to})}")).status == 422


@pytest.mark.parametrize("to", ["//evil.example", "/\\evil.example", "/..//evil.example", "/#@evil.example"])
async def test_nobody_is_led_to_another_site(browser: Browser, to: str) -> None:
    back = await browser.sign_in(to)

    location = urlsplit(back.headers["Location"])
    assert back.status == 303
    assert (location.scheme, location.netloc, location.path) == ("", "", "/")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_cookie_without_the_consoles_header_does_nothing(
    site: Site, browser: Browser, method: str
) -> None:
    await browser.sign_in()

    if method == "GET":
        answer = await browser.get("/v1/targets")
    else:
        answer = await browser.post("/v1/targets/chat/pause", {HEADER: "k"}, {"reason": "forged"})

    assert (answer.status, (await answer.json(content_type=None))["type"]) == (
        403,
        "urn:flettner:problem:no-console-header",
    )
    assert not site.daemon.targets()["chat"].state.paused


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}],
)
async def test_another_site_cannot_use_a_session(
    site: Site, browser: Browser, headers: dict[str, str]
) -> None:
    await browser.sign_in()

    answer = await browser.post("/v1/targets/chat/pause", FROM_CONSOLE | headers, {"reason": "forged"})
    begun = await browser.get(SIGN_IN, headers | {"Sec-Fetch-Mode": "navigate"})

    assert (answer.status, begun.status) == (403, 403)
    assert not site.daemon.targets()["chat"].state.paused


async def test_no_other_origin_may_send_the_header(site: Site, browser: Browser) -> None:
    """A preflight is refused, so that a browser does not send the request."""
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Headers": CONSOLE}
    async with browser.session.options(f"{site.url}/v1/targets", headers=headers) as answer:
        assert answer.status == 403
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


async def test_a_session_ends_in_time(site: Site, browser: Browser) -> None:
    await browser.sign_in()
    site.shift_clock(8 * HOUR_S - 1)
    before = await browser.me()
    site.shift_clock(1)

    after = await browser.me()
    assert (before.status, after.status) == (200, 401)
    assert "sign in again" in await after.text()


async def test_an_ended_session_ends_its_stream(site: Site, browser: Browser) -> None:
    await browser.sign_in()

    async with browser.session.get(f"{site.url}/v1/events", headers=FROM_CONSOLE) as stream:
        assert stream.status == 200
        site.shift_clock(8 * HOUR_S)
        await stream.read()  # ends


async def test_signing_out_ends_the_session_for_its_cookie_too(browser: Browser, other: Browser) -> None:
    await browser.sign_in()
    other.session.cookie_jar.update_cookies(
        {cookie.key: cookie.value for cookie in browser.session.cookie_jar}
    )
    copied = await other.me()

    out = await browser.post("/v1/sign-out", FROM_CONSOLE)

    assert (copied.status, await out.json()) == (200, {"ended": True})
    assert out.headers["Set-Cookie"].startswith('flettner=""; HttpOnly; Max-Age=0')
    assert ((await browser.me()).status, (await other.me()).status) == (401, 401)


async def test_a_second_sign_in_ends_the_first_session(browser: Browser, other: Browser) -> None:
    await browser.sign_in()
    other.session.cookie_jar.update_cookies(
        {cookie.key: cookie.value for cookie in browser.session.cookie_jar}
    )
    await browser.sign_in()

    assert ((await browser.me()).status, (await other.me()).status) == (200, 401)


async def test_a_token_takes_precedence_over_a_session(browser: Browser) -> None:
    await browser.sign_in()

    answer = await browser.get("/v1/me", FROM_CONSOLE | {"Authorization": "Bearer wrong"})

    assert answer.status == 401


async def test_a_provider_that_is_away_is_said(site: Site, browser: Browser) -> None:
    site.provider.status = 503

    answer = await browser.get(SIGN_IN)

    assert (answer.status, "does not answer as it should" in await answer.text()) == (503, True)


@pytest.mark.parametrize(
    "described", [{"token_endpoint": "http://evil.example/token"}, {"token_endpoint": None}]
)
async def test_a_secret_goes_to_no_plain_address(
    site: Site, browser: Browser, described: dict[str, Any]
) -> None:
    site.provider.described = described

    assert (await browser.sign_in()).status == 503


async def test_a_client_that_sends_its_secret_in_the_body_is_accepted(site: Site, browser: Browser) -> None:
    site.provider.described = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}

    assert (await browser.sign_in()).status == 303


async def test_a_wrong_secret_is_named(site: Site, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "client.secret").write_text("wrong")

    await refused(site, await browser.sign_in(), "the provider refused the code (invalid_client)", browser)


async def test_sessions_and_used_attempts_take_bounded_memory(
    site: Site, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flettner.agent.api.sign_in.MOST_USED", 2)
    monkeypatch.setattr("flettner.agent.api.sign_in.MOST_SESSIONS", 2)
    for _ in range(3):
        assert (await browser.sign_in()).status == 303
        browser.session.cookie_jar.clear()

    assert (len(site.sign_in._used), len(site.sign_in._sessions)) == (2, 2)


async def test_attempts_of_others_take_no_memory_and_displace_nobodys(site: Site, browser: Browser) -> None:
    address = await browser.leave()
    before = sizes(site.sign_in)
    for _ in range(500):
        await site.sign_in.begin("/" + "x" * 299)

    assert sizes(site.sign_in) == before
    assert (await browser.get(address, LINK)).status == 303


async def test_the_cookie_of_an_attempt_tells_no_secret_and_counts_unaltered_only(
    site: Site, browser: Browser
) -> None:
    address = await browser.leave("/targets/chat")
    (cookie,) = [each for each in browser.session.cookie_jar if each.key == site.sign_in.cookies.attempt]
    attempt = site.sign_in._attempt_of(cookie.value)
    seed, at_s, place = cookie.value.split(".")
    assert not {attempt.state, attempt.nonce, attempt.verifier} & {seed, place, cookie.value}

    for altered in (f"{seed}.{int(at_s) + 60}.{place}", f"{seed}.{at_s}.", seed, "", "..", "ü"):
        headers = {**LINK, "Cookie": f"{cookie.key}={altered}"}
        async with ClientSession() as bare, bare.get(address, headers=headers) as answer:
            assert (answer.status, "another browser" in await answer.text()) == (403, True)
    assert (await browser.get(address, LINK)).headers["Location"] == "/#/targets/chat"


async def test_a_person_ends_no_session_of_another_by_signing_in_often(
    site: Site, browser: Browser, other: Browser
) -> None:
    await other.sign_in()
    site.provider.person = {"sub": "mallory"}
    for _ in range(MOST_SESSIONS_EACH + 1):
        browser.session.cookie_jar.clear()
        assert (await browser.sign_in()).status == 303

    assert len(site.sign_in._sessions) == MOST_SESSIONS_EACH + 1
    assert ((await other.me()).status, (await browser.me()).status) == (200, 200)


async def test_the_provider_is_asked_for_a_bounded_number_of_codes(site: Site, browser: Browser) -> None:
    address = await browser.leave()
    for _ in range(int(MOST_EXCHANGES_AT_ONCE)):
        site.sign_in._exchanges.spend("every browser")

    refused = await browser.get(address, LINK)
    site.shift_clock(1.0)

    assert (refused.status, (await browser.sign_in()).status) == (429, 303)


async def test_made_up_codes_of_one_client_refuse_the_sign_in_to_no_other(
    browser: Browser, other: Browser
) -> None:
    statuses = []
    for _ in range(int(MOST_REFUSED_AT_ONCE) + 5):
        begun = urlsplit((await other.get(SIGN_IN, FLOOD)).headers["Location"])
        query = {"state": parse_qs(begun.query)["state"][0], "code": "made up"}
        statuses.append((await other.get(f"{CALLBACK}?{urlencode(query)}", FLOOD | LINK)).status)

    assert (statuses[0], statuses[-1]) == (403, 429)
    assert (await browser.sign_in()).status == 303


async def test_people_who_share_an_address_sign_in_as_often_as_they_like(
    browser: Browser,
) -> None:
    for _ in range(int(MOST_REFUSED_AT_ONCE) + 1):
        browser.session.cookie_jar.clear()
        assert (await browser.sign_in()).status == 303


async def test_a_flood_without_a_session_refuses_no_sign_in_and_ends_no_session(
    browser: Browser, other: Browser
) -> None:
    """Also where all of them have the address of a proxy that is not trusted."""
    await browser.sign_in()

    statuses = {(await other.get("/v1/targets")).status for _ in range(int(BURST) + 10)}
    statuses |= {(await other.get(f"{CALLBACK}?state=x&code=y")).status for _ in range(10)}

    assert statuses == {401, 429}
    assert (await browser.me()).status == 200
    assert (await other.sign_in()).status == 303


def sizes(signing_in: SignIn) -> dict[str, int]:
    """Of everything that it keeps."""
    kept = {name: getattr(signing_in, name) for name in SignIn.__slots__}
    return {name: len(value) for name, value in kept.items() if isinstance(value, dict)}


async def test_no_secret_is_in_the_answers(site: Site, browser: Browser) -> None:
    people: tuple[dict[str, Any], ...] = ({}, {"groups": []})
    for person in people:
        site.provider.person = person
        answer = await browser.sign_in()
        assert "PLANTED" not in await answer.text() + str(answer.headers)
