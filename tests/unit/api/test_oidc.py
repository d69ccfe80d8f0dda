"""Tokens of an OpenID Connect provider, which a server on this host stands in for."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from flettner.agent.api.external_tokens import IdentifiedCaller, ReviewError
from flettner.agent.config.listen import Role
from flettner.authenticators import oidc
from flettner.authenticators.oidc import Oidc
from tests.support.identity_provider import (
    DAY_S,
    FOREIGN,
    LATER,
    NOW,
    IdentityProvider,
    identity_provider,
)


@pytest.fixture
async def provider() -> AsyncIterator[IdentityProvider]:
    async with identity_provider() as provider:
        yield provider


def accept(
    provider: IdentityProvider, *, name_claim: str = "sub", users: dict[str, Role] | None = None
) -> Oidc:
    return Oidc(
        issuer=provider.issuer,
        name_claim=name_claim,
        users=users or {},
        groups={"sre": "operator", "all": "viewer"},
    )


async def test_the_highest_role_of_user_and_groups_counts(provider: IdentityProvider) -> None:
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
async def test_other_tokens_are_refused(provider: IdentityProvider, claims: dict[str, Any]) -> None:
    assert await accept(provider).identify(provider.token(**claims)) is None


@pytest.mark.parametrize("text", ["", "a.b.c", "eyJhbGciOiJSUzI1NiJ9", "…"])
async def test_what_is_no_token_asks_nobody(provider: IdentityProvider, text: str) -> None:
    assert await accept(provider).identify(text) is None
    assert provider.asked == 0


async def test_an_address_counts_only_if_it_is_verified(provider: IdentityProvider) -> None:
    authenticator = accept(provider, name_claim="email", users={"ann@example.com": "admin"})

    claims: dict[str, Any] = {"email": "ann@example.com", "groups": []}

    assert await authenticator.identify(provider.token(**claims)) is None
    caller = await authenticator.identify(provider.token(**claims, email_verified=True))
    assert caller == IdentifiedCaller(name="ann@example.com", role="admin")


async def test_a_new_key_is_found_and_unknown_ones_ask_seldom(
    provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
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


async def test_a_withdrawn_key_is_forgotten(
    provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    authenticator = accept(provider)
    assert await authenticator.identify(provider.token()) is not None
    provider.keys = {"later": LATER}
    monkeypatch.setattr(oidc, "KEYS_LAST_S", 0.0)

    with pytest.raises(ReviewError, match="some seconds ago"):
        await authenticator.identify(provider.token())
    authenticator._provider._asked_at = float("-inf")
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
    provider: IdentityProvider, described: dict[str, Any], status: int, why: str
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
        ({"session_h": 0.0}, "up to 24 hours"),
        ({"session_h": 25.0}, "up to 24 hours"),
    ],
)
def test_options_that_would_accept_too_much_or_nothing_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Oidc(**({"issuer": "https://login.example.com", "groups": {"sre": "operator"}} | options))
