"""Tokens of an OpenID Connect provider, which a server on this host stands in for."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.asymmetric import rsa

from flettner.agent.api.external_tokens import IdentifiedCaller, ReviewError
from flettner.agent.config.listen import Role
from flettner.authenticators import oidc
from flettner.authenticators.oidc import Oidc

NOW = int(datetime.now(UTC).timestamp())  # noqa: TID251 - the library reads the clock
DAY_S = 86_400  # the tests may run long after NOW
KEY, LATER, FOREIGN = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(3))


@dataclass
class Provider:
    issuer: str = ""
    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=lambda: {"first": KEY})
    described: dict[str, Any] = field(default_factory=dict)  # in place of what is true
    status: int = 200
    asked: int = 0

    def token(
        self,
        *,
        key: rsa.RSAPrivateKey | bytes | str = KEY,
        kid: str = "first",
        algorithm: str = "RS256",
        **claims: object,
    ) -> str:
        all_claims = {
            "iss": self.issuer,
            "aud": "flettner",
            "sub": "ann",
            "iat": NOW,
            "exp": NOW + DAY_S,
            "groups": ["sre"],
        } | claims
        written = {name: value for name, value in all_claims.items() if value is not None}
        return jwt.encode(written, key, algorithm=algorithm, headers={"kid": kid})

    async def describe(self, _: web.Request) -> web.Response:
        self.asked += 1
        true = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"}
        return web.json_response(true | self.described, status=self.status)

    async def publish(self, _: web.Request) -> web.Response:
        signing = [
            json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())) | {"kid": kid, "use": "sig"}
            for kid, key in self.keys.items()
        ]
        secret = {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"}
        return web.json_response({"keys": [*signing, secret, {"kty": "unheard of"}, "no key"]})


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    provider = Provider()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", provider.describe)
    app.router.add_get("/keys", provider.publish)
    async with TestServer(app) as server:
        provider.issuer = str(server.make_url("")).rstrip("/")
        yield provider


def accept(provider: Provider, *, name_claim: str = "sub", users: dict[str, Role] | None = None) -> Oidc:
    return Oidc(
        issuer=provider.issuer,
        name_claim=name_claim,
        users=users or {},
        groups={"sre": "operator", "all": "viewer"},
    )


async def test_the_highest_role_of_user_and_groups_counts(provider: Provider) -> None:
    authenticator = accept(provider, users={"boss": "admin"})

    answers = [
        await authenticator.identify(provider.token(sub=name, groups=groups))
        for name, groups in (("ann", ["all", "sre"]), ("boss", []), ("eve", ["others"]), ("eve", "sre"))
    ]

    assert answers == [
        IdentifiedCaller(name="ann", role="operator"),
        IdentifiedCaller(name="boss", role="admin"),
        None,
        None,
    ]
    assert provider.asked == 1


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param({"aud": "another service"}, id="for another service"),
        pytest.param({"aud": None}, id="for nobody"),
        pytest.param({"iss": "https://login.example.com"}, id="of another issuer"),
        pytest.param({"exp": NOW - DAY_S}, id="late"),
        pytest.param({"exp": None}, id="without an end"),
        pytest.param({"nbf": NOW + DAY_S}, id="early"),
        pytest.param({"sub": ""}, id="of nobody"),
        pytest.param({"key": FOREIGN}, id="forged"),
        pytest.param({"kid": "unknown"}, id="of an unknown key"),
        pytest.param({"key": b"secret" * 8, "algorithm": "HS256"}, id="of a secret as the key"),
        pytest.param({"key": b"secret", "kid": "secret", "algorithm": "HS256"}, id="of a published secret"),
        pytest.param({"key": "", "algorithm": "none"}, id="not signed"),
        pytest.param({"algorithm": "RS512"}, id="of another algorithm"),
    ],
)
@pytest.mark.filterwarnings("ignore:The HMAC key")
async def test_other_tokens_are_refused(provider: Provider, claims: dict[str, Any]) -> None:
    assert await accept(provider).identify(provider.token(**claims)) is None


@pytest.mark.parametrize("text", ["", "a.b.c", "eyJhbGciOiJSUzI1NiJ9", "…"])
async def test_what_is_no_token_asks_nobody(provider: Provider, text: str) -> None:
    assert await accept(provider).identify(text) is None
    assert provider.asked == 0


async def test_an_address_counts_only_if_it_is_verified(provider: Provider) -> None:
    authenticator = accept(provider, name_claim="email", users={"ann@example.com": "admin"})

    claims: dict[str, Any] = {"email": "ann@example.com", "groups": []}

    assert await authenticator.identify(provider.token(**claims)) is None
    caller = await authenticator.identify(provider.token(**claims, email_verified=True))
    assert caller == IdentifiedCaller(name="ann@example.com", role="admin")


async def test_a_new_key_is_found_and_unknown_ones_ask_seldom(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    authenticator = accept(provider)
    assert await authenticator.identify(provider.token()) is not None
    provider.keys["later"] = LATER
    new = provider.token(key=LATER, kid="later")

    assert await authenticator.identify(new) is None
    assert provider.asked == 1
    monkeypatch.setattr(oidc, "ASKS_AGAIN_S", 0.0)
    assert await authenticator.identify(new) is not None
    assert provider.asked == 2


async def test_a_withdrawn_key_is_forgotten(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    authenticator = accept(provider)
    assert await authenticator.identify(provider.token()) is not None
    provider.keys = {"later": LATER}
    monkeypatch.setattr(oidc, "KEYS_LAST_S", 0.0)

    with pytest.raises(ReviewError, match="some seconds ago"):
        await authenticator.identify(provider.token())
    authenticator._keys._asked_at = float("-inf")
    assert await authenticator.identify(provider.token()) is None


@pytest.mark.parametrize(
    ("described", "status", "why"),
    [
        ({"issuer": "https://evil.example.com"}, 200, "evil.example.com"),
        ({"jwks_uri": "http://evil.example.com/keys"}, 200, "https://"),
        ({}, 503, "503"),
    ],
)
async def test_a_provider_that_cannot_be_trusted_or_reached_is_named(
    provider: Provider, described: dict[str, Any], status: int, why: str
) -> None:
    provider.described, provider.status = described, status

    with pytest.raises(ReviewError, match=why):
        await accept(provider).identify(provider.token())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"issuer": "http://login.example.com"}, "https://"),
        ({"issuer": "login.example.com"}, "https://"),
        ({"audience": ""}, "any service"),
        ({"groups": {}}, "nobody would have a role"),
    ],
)
def test_options_that_would_accept_too_much_or_nothing_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Oidc(**({"issuer": "https://login.example.com", "groups": {"sre": "operator"}} | options))
