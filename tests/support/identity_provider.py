"""Stands in for an OpenID Connect provider: keys, a page where people sign in, and tokens for codes."""

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any
from urllib.parse import unquote_plus, urlencode

import jwt
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.asymmetric import rsa

NOW = int(datetime.now(UTC).timestamp())  # noqa: TID251 - the library reads the clock
DAY_S = 86_400  # the tests may run long after NOW
KEY, LATER, FOREIGN = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(3))
CLIENT, SECRET = "flettner", "PLANTED:client secret"


@dataclass
class IdentityProvider:
    issuer: str = ""
    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=lambda: {"first": KEY})
    described: dict[str, Any] = field(default_factory=dict)  # in place of what is true
    status: int = 200
    asked: int = 0
    person: dict[str, Any] = field(default_factory=dict)  # claims of who signs in, in place of ann's
    codes: dict[str, Mapping[str, str]] = field(default_factory=dict)  # with what they were asked for
    refuses: str = ""  # the error of its page
    _numbers: Iterator[int] = field(default_factory=count)

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
            "aud": CLIENT,
            "sub": "ann",
            "iat": NOW,
            "exp": NOW + DAY_S,
            "groups": ["sre"],
        } | claims
        written = {name: value for name, value in all_claims.items() if value is not None}
        return jwt.encode(written, key, algorithm=algorithm, headers={"kid": kid})

    async def describe(self, _: web.Request) -> web.Response:
        self.asked += 1
        true = {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/keys",
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "scopes_supported": ["openid", "email", "groups", "offline_access"],
        }
        return web.json_response(true | self.described, status=self.status)

    async def publish(self, _: web.Request) -> web.Response:
        signing = [
            json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())) | {"kid": kid, "use": "sig"}
            for kid, key in self.keys.items()
        ]
        secret = {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"}
        return web.json_response({"keys": [*signing, secret, {"kty": "unheard of"}, "no key"]})

    async def authorize(self, request: web.Request) -> web.Response:
        """As if the person had signed in before: straight back, with a code."""
        asked = dict(request.query)
        code = f"code-{next(self._numbers)}"
        self.codes[code] = asked
        answer = {"error": self.refuses} if self.refuses else {"code": code}
        query = {**answer, "state": asked["state"], "iss": self.issuer, "session_state": "x"}
        return web.Response(status=303, headers={"Location": f"{asked['redirect_uri']}?{urlencode(query)}"})

    async def exchange(self, request: web.Request) -> web.Response:
        """A code is good once, for the client that asked, its address and its verifier (RFC 7636)."""
        form = await request.post()
        asked = self.codes.pop(str(form["code"]), {})
        digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        given = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if self._client(request, form) != (CLIENT, SECRET):
            return web.json_response({"error": "invalid_client"}, status=401)
        if (given, form["redirect_uri"]) != (asked.get("code_challenge"), asked.get("redirect_uri")):
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response(
            {
                "access_token": "PLANTED-access",
                "token_type": "Bearer",
                "id_token": self.token(**({"nonce": asked["nonce"]} | self.person)),
            }
        )

    @staticmethod
    def _client(request: web.Request, form: Mapping[str, object]) -> tuple[str, str]:
        scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Basic":
            return str(form.get("client_id")), str(form.get("client_secret"))
        name, _, secret = base64.b64decode(encoded).decode().partition(":")
        return unquote_plus(name), unquote_plus(secret)


@asynccontextmanager
async def identity_provider() -> AsyncIterator[IdentityProvider]:
    provider = IdentityProvider()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", provider.describe)
    app.router.add_get("/keys", provider.publish)
    app.router.add_get("/authorize", provider.authorize)
    app.router.add_post("/token", provider.exchange)
    async with TestServer(app) as server:
        provider.issuer = str(server.make_url("")).rstrip("/")
        yield provider
