"""Tokens that an OpenID Connect provider signed for people and services: Keycloak, Entra, Okta, Dex, Google.

A token is a JWT for this daemon as its audience. Its signature is checked with the provider's published keys
(OpenID Connect Discovery 1.0, RFC 7517), which are read when one is first needed and when a new one appears.
With a client's secret people also sign in to the console there (OpenID Connect Core 1.0, 3.1). Authlib has
that flow for requests and httpx only, a second HTTP client for one POST; PyJWT checks what must be right.
"""

import asyncio
import base64
import hmac
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

import aiohttp
import jwt

from flettner.agent.api.external_tokens import LONGEST_TOKEN, IdentifiedCaller, ReviewError, highest_role
from flettner.agent.api.sign_in import SignInAttempt, SignInError
from flettner.agent.config.listen import Role
from flettner.primitives.bounded import parse_json, read_body
from flettner.primitives.files import read_file

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""With public keys only: a secret that both sides know would let the daemon make tokens."""
ANSWERS_WITHIN_S: Final = 5.0
LEEWAY_S: Final = 30.0  # by which the clocks of both hosts may differ
KEYS_LAST_S: Final = 3600.0  # after which they are read again: a withdrawn key is not accepted for longer
ASKS_AGAIN_S: Final = 30.0  # at most, for a key that nobody published
LONGEST_SECRET: Final = 4096
LONGEST_SESSION_H: Final = 24
_ERROR: Final = re.compile(r"[a-z_]{1,60}")  # RFC 6749 (5.2)
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, kw_only=True)
class Oidc:
    """The highest role of the user and of the groups counts; without one the token is refused."""

    issuer: str  # as in the tokens' `iss`, for example https://login.example.com/realms/ops
    audience: str = "flettner"  # the client's id at the provider; the token must be for it
    name_claim: str = "sub"  # who it is, for users and the audit; "email" needs email_verified
    groups_claim: str = "groups"  # a list of names
    users: Mapping[str, Role] = field(default_factory=dict)  # roles by name
    groups: Mapping[str, Role] = field(default_factory=dict)  # roles by group
    client_secret_file: str = ""  # of the client `audience`: with it people sign in to the console there
    session_h: float = 8.0  # hours until they sign in again
    _provider: "_Provider" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_address(self.issuer, "issuer")
        if not self.audience:
            raise ValueError("audience is empty: a token for any service of the provider would be accepted")
        if not self.users and not self.groups:
            raise ValueError("users and groups are empty: nobody would have a role")
        if not 0 < self.session_h <= LONGEST_SESSION_H:
            raise ValueError(f"session_h = {self.session_h:g}: write up to {LONGEST_SESSION_H} hours")
        object.__setattr__(self, "_provider", _Provider(self.issuer))

    async def identify(self, token: str) -> IdentifiedCaller | None:
        claims = await self._verify(token)
        return self._find_caller(claims) if claims is not None else None

    @property
    def offers_sign_in(self) -> bool:
        return bool(self.client_secret_file)

    async def start_url(self, attempt: SignInAttempt) -> str:
        described = await self._provider.describe()
        supported = described.get("scopes_supported")
        names = ("email", "profile", "groups", self.groups_claim)
        asked = [name for name in dict.fromkeys(names) if name in supported] if supported else names[:2]
        parameters = {
            "response_type": "code",
            "client_id": self.audience,
            "redirect_uri": attempt.redirect_uri,
            "scope": " ".join(["openid", *asked]),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        address = _endpoint(described, "authorization_endpoint")
        return f"{address}{'&' if urlsplit(address).query else '?'}{urlencode(parameters)}"

    async def redeem(self, code: str, attempt: SignInAttempt) -> IdentifiedCaller | None:
        described = await self._provider.describe()
        token = await self._provider.exchange(
            _endpoint(described, "token_endpoint"),
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": attempt.redirect_uri,
                "code_verifier": attempt.verifier,
            },
            client=(self.audience, self._read_secret()),
            by_body="client_secret_basic"
            not in described.get("token_endpoint_auth_methods_supported", ["client_secret_basic"]),
        )
        claims = await self._verify(token)
        if claims is None:
            raise SignInError("the ID token is not valid: its signature, issuer, audience or time")
        if not hmac.compare_digest(str(claims.get("nonce")).encode(), attempt.nonce.encode()):
            raise SignInError("the ID token is of another sign-in")
        if claims.get("azp", self.audience) != self.audience:
            raise SignInError("the ID token is of another client")
        return self._find_caller(claims)

    def _read_secret(self) -> str:
        try:
            return read_file(Path(self.client_secret_file), LONGEST_SECRET).decode().strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise ReviewError(f"{self.client_secret_file}: cannot be read: {why}") from None

    async def _verify(self, token: str) -> Mapping[str, Any] | None:
        """The claims of a valid token for this daemon. Raises ReviewError."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            return None  # no JWT: it may be one of another authenticator
        key = await self._provider.find_key(str(header.get("kid") or ""))
        if key is None:
            return None
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self.audience,
                issuer=self.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        return claims

    def _find_caller(self, claims: Mapping[str, Any]) -> IdentifiedCaller | None:
        name = claims.get(self.name_claim)
        if not isinstance(name, str) or not name:
            return None
        if self.name_claim == "email" and claims.get("email_verified") is not True:
            return None
        listed = claims.get(self.groups_claim)
        member_of = [group for group in listed if isinstance(group, str)] if isinstance(listed, list) else []
        role = highest_role(name, member_of, users=self.users, groups=self.groups)
        return IdentifiedCaller(name=name, role=role) if role else None


class _Provider:
    """What the provider publishes: its keys by their id, and its endpoints; read again for an unknown key."""

    def __init__(self, issuer: str) -> None:
        self._issuer = issuer
        self._described: Mapping[str, Any] = {}
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._read_at = self._asked_at = float("-inf")
        self._lock = asyncio.Lock()

    async def describe(self) -> Mapping[str, Any]:
        """Raises ReviewError if the provider does not answer."""
        async with self._lock:
            await self._refresh()
            return self._described

    async def find_key(self, key_id: str) -> jwt.PyJWK | None:
        """The key; None if the provider does not publish it. Raises ReviewError if it does not answer."""
        async with self._lock:
            await self._refresh(key_id)
            return self._keys.get(key_id)

    async def exchange(
        self, address: str, form: Mapping[str, str], *, client: tuple[str, str], by_body: bool
    ) -> str:
        """The ID token for a code. Raises SignInError, and ReviewError if the provider does not answer."""
        # RFC 6749 (2.3.1): name and secret are encoded as in a form, also in the header
        basic = base64.b64encode(":".join(map(quote_plus, client)).encode()).decode()
        headers = {"Accept": "application/json"} | ({} if by_body else {"Authorization": f"Basic {basic}"})
        more = {"client_id": client[0], "client_secret": client[1]} if by_body else {}
        try:
            async with (
                _session() as session,
                session.post(
                    address, data={**form, **more}, headers=headers, allow_redirects=False
                ) as answer,
            ):
                document = parse_json(await read_body(answer))
                status = answer.status
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ReviewError(f"{self._issuer} gives no tokens: {type(error).__name__}") from error
        token = document.get("id_token") if isinstance(document, dict) else None
        if status in {400, 401, 403}:
            code = str(document.get("error")) if isinstance(document, dict) else ""
            raise SignInError(f"the provider refused the code ({code if _ERROR.fullmatch(code) else status})")
        if status != 200 or not isinstance(token, str) or len(token) > LONGEST_TOKEN:  # noqa: PLR2004 - OK
            raise ReviewError(f"{self._issuer} answered {status} without an ID token")
        return token

    async def _refresh(self, key_id: str | None = None) -> None:
        now = time.monotonic()
        is_old = now - self._read_at > KEYS_LAST_S
        if is_old and now - self._asked_at <= ANSWERS_WITHIN_S:
            raise ReviewError(f"the keys of {self._issuer} could not be read some seconds ago")
        is_new = key_id is not None and key_id not in self._keys
        if is_old or (is_new and now - self._asked_at > ASKS_AGAIN_S):
            self._asked_at = now
            self._described, self._keys = await self._read()
            self._read_at = now

    async def _read(self) -> tuple[Mapping[str, Any], Mapping[str, jwt.PyJWK]]:
        try:
            async with _session() as session:
                described = await _get(
                    session, self._issuer.rstrip("/") + "/.well-known/openid-configuration"
                )
                listed = (await _get(session, _keys_address(described, self._issuer))).get("keys")
            return described, dict(_usable_keys(listed if isinstance(listed, list) else []))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise ReviewError(f"the keys of {self._issuer} cannot be read: {why}") from error


def _session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=ANSWERS_WITHIN_S)
    return aiohttp.ClientSession(timeout=timeout, trust_env=True, cookie_jar=aiohttp.DummyCookieJar())


def _endpoint(described: Mapping[str, Any], name: str) -> str:
    """Raises ReviewError."""
    address = str(described.get(name))
    try:
        _check_address(address, name)
    except ValueError as error:
        raise ReviewError(f"the provider's description: {error}") from None
    return address


def _keys_address(described: Mapping[str, Any], issuer: str) -> str:
    """Raises ValueError unless the provider describes this issuer."""
    if described.get("issuer") != issuer:
        raise ValueError(f"it describes the issuer {str(described.get('issuer'))[:200]!r}")
    _check_address(str(described.get("jwks_uri")), "jwks_uri")
    return str(described["jwks_uri"])


def _usable_keys(listed: Sequence[object]) -> list[tuple[str, jwt.PyJWK]]:
    """Those for signatures, of a kind that is accepted; a provider may publish others beside them."""
    keys = []
    for document in listed:
        if not isinstance(document, dict) or document.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(document)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        if key.algorithm_name in ALGORITHMS:
            keys.append((str(document.get("kid") or ""), key))
    return keys


async def _get(session: aiohttp.ClientSession, address: str) -> dict[str, Any]:
    async with session.get(address, allow_redirects=False) as answer:
        answer.raise_for_status()
        document = parse_json(await read_body(answer))
    return document if isinstance(document, dict) else {}


def _check_address(text: str, name: str) -> None:
    parts = urlsplit(text)
    if parts.hostname and (
        parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    ):
        return
    raise ValueError(f"{name} = {text[:200]!r}: write an address with https://")


plugin = Oidc
