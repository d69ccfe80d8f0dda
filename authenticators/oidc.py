"""Tokens that an OpenID Connect provider signed for people and services: Keycloak, Entra, Okta, Dex, Google.

A token is a JWT for this daemon as its audience. Its signature is checked with the provider's published keys
(OpenID Connect Discovery 1.0, RFC 7517), which are read when one is first needed and when a new one appears.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import jwt

from flettner.agent.api.external_tokens import IdentifiedCaller, ReviewError, highest_role
from flettner.agent.config.listen import Role
from flettner.primitives.bounded import parse_json, read_body

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""With public keys only: a secret that both sides know would let the daemon make tokens."""
ANSWERS_WITHIN_S: Final = 5.0
LEEWAY_S: Final = 30.0  # by which the clocks of both hosts may differ
KEYS_LAST_S: Final = 3600.0  # after which they are read again: a withdrawn key is not accepted for longer
ASKS_AGAIN_S: Final = 30.0  # at most, for a key that nobody published
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
    _keys: "_PublishedKeys" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_address(self.issuer, "issuer")
        if not self.audience:
            raise ValueError("audience is empty: a token for any service of the provider would be accepted")
        if not self.users and not self.groups:
            raise ValueError("users and groups are empty: nobody would have a role")
        object.__setattr__(self, "_keys", _PublishedKeys(self.issuer))

    async def identify(self, token: str) -> IdentifiedCaller | None:
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            return None  # no JWT: it may be one of another authenticator
        key = await self._keys.find(str(header.get("kid") or ""))
        if key is None:
            return None
        try:
            claims = jwt.decode(
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
        name = claims.get(self.name_claim)
        if not isinstance(name, str) or not name:
            return None
        if self.name_claim == "email" and claims.get("email_verified") is not True:
            return None
        listed = claims.get(self.groups_claim)
        member_of = [group for group in listed if isinstance(group, str)] if isinstance(listed, list) else []
        role = highest_role(name, member_of, users=self.users, groups=self.groups)
        return IdentifiedCaller(name=name, role=role) if role else None


class _PublishedKeys:
    """The provider's keys by their id, read again for an unknown one."""

    def __init__(self, issuer: str) -> None:
        self._issuer = issuer
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._read_at = self._asked_at = float("-inf")
        self._lock = asyncio.Lock()

    async def find(self, key_id: str) -> jwt.PyJWK | None:
        """The key; None if the provider does not publish it. Raises ReviewError if it does not answer."""
        async with self._lock:
            now = time.monotonic()
            is_old = now - self._read_at > KEYS_LAST_S
            if is_old and now - self._asked_at <= ANSWERS_WITHIN_S:
                raise ReviewError(f"the keys of {self._issuer} could not be read some seconds ago")
            if is_old or (key_id not in self._keys and now - self._asked_at > ASKS_AGAIN_S):
                self._asked_at = now
                self._keys = await self._read()
                self._read_at = now
            return self._keys.get(key_id)

    async def _read(self) -> Mapping[str, jwt.PyJWK]:
        timeout = aiohttp.ClientTimeout(total=ANSWERS_WITHIN_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
                described = await _get(
                    session, self._issuer.rstrip("/") + "/.well-known/openid-configuration"
                )
                listed = (await _get(session, _keys_address(described, self._issuer))).get("keys")
            return dict(_usable_keys(listed if isinstance(listed, list) else []))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise ReviewError(f"the keys of {self._issuer} cannot be read: {why}") from error


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
