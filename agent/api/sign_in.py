"""Sign-in of people in a browser by an identity provider, and the sessions that their cookies name.

The authorization code flow of OpenID Connect Core 1.0 (3.1), with PKCE (RFC 7636) and the issuer of RFC 9207.
Attempts and sessions are kept in memory: a restart ends them, and cookies carry random names only.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar, runtime_checkable
from urllib.parse import urlsplit

from aiohttp import web

from flettner.agent.api.external_tokens import Authenticator, IdentifiedCaller, holder_of
from flettner.agent.api.rate_limits import RateLimits
from flettner.agent.api.tokens import Holder
from flettner.agent.domain.errors import FlettnerError

SIGN_IN, CALLBACK = "/v1/sign-in", "/v1/sign-in/callback"
PATHS: Final = frozenset({SIGN_IN, CALLBACK})  # that a browser asks for before it has a session
OFFER = "Flettner-Sign-In"
"""Header of a 401: the host of the provider by which people can sign in."""
CONSOLE = "Flettner-Console"
"""Header with which a cookie counts: only a page of this origin can set it, without a preflight (CORS)."""
ATTEMPT_S = 600.0  # in which a person signs in at the provider
MOST_ATTEMPTS, MOST_SESSIONS = 10_000, 1000  # the oldest is dropped
EXCHANGES_PER_S, MOST_EXCHANGES_AT_ONCE = 2.0, 40.0  # of all browsers: each is a request to the provider

Value = TypeVar("Value")


class SignInError(FlettnerError):
    """The sign-in is refused. The message is for the person and the audit, and repeats no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInAttempt:
    state: str
    nonce: str
    verifier: str  # of PKCE
    redirect_uri: str

    @property
    def challenge(self) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@runtime_checkable
class SignInProvider(Authenticator, Protocol):
    """An authenticator at which people can sign in."""

    issuer: str
    session_h: float  # after which they sign in again

    @property
    def offers_sign_in(self) -> bool:
        """Whether the config has what that needs."""
        ...

    async def start_url(self, attempt: SignInAttempt) -> str:
        """The provider's page for this attempt. Raises ReviewError."""
        ...

    async def redeem(self, code: str, attempt: SignInAttempt) -> IdentifiedCaller | None:
        """The person who signed in; None: without a role here. Raises SignInError and ReviewError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Cookies:
    """Names and attributes. `__Host-` binds a cookie to this host, HTTPS and no other path."""

    is_https: bool

    @property
    def session(self) -> str:
        return "__Host-flettner" if self.is_https else "flettner"

    @property
    def attempt(self) -> str:
        return f"{self.session}-sign-in"

    def set(self, response: web.Response, name: str, value: str, lasts_s: float) -> None:
        """The attempt's cookie is sent with the provider's link back; the session's by our own pages only."""
        response.set_cookie(
            name,
            value,
            max_age=int(lasts_s),
            path="/",
            secure=self.is_https,
            httponly=True,
            samesite="Lax" if name == self.attempt else "Strict",
        )

    def clear(self, response: web.Response, name: str) -> None:
        self.set(response, name, "", 0)


@dataclass(slots=True, kw_only=True)
class SignIn:
    """`source`: the authenticator's name; `clock`: monotonic s."""

    source: str
    provider: SignInProvider
    public_url: str
    clock: Callable[[], float]
    _attempts: dict[str, tuple[SignInAttempt, str, str, float]] = field(default_factory=dict)
    """By state: with the hash of its cookie, the place to return to, and the time; oldest first."""
    _sessions: dict[str, tuple[Holder, float]] = field(default_factory=dict)
    """By the hash of the cookie: with the time of the end; oldest first."""
    _exchanges: RateLimits = field(init=False)

    def __post_init__(self) -> None:
        self._exchanges = RateLimits(self.clock, per_s=EXCHANGES_PER_S, burst=MOST_EXCHANGES_AT_ONCE)

    @property
    def cookies(self) -> Cookies:
        return Cookies(is_https=urlsplit(self.public_url).scheme == "https")

    @property
    def host(self) -> str:
        return urlsplit(self.provider.issuer).hostname or self.source

    async def begin(self, place: str) -> tuple[str, str]:
        """The cookie of a new attempt and the provider's page. Raises ReviewError."""
        state, nonce, verifier, cookie = (secrets.token_urlsafe(32) for _ in range(4))
        attempt = SignInAttempt(
            state=state, nonce=nonce, verifier=verifier, redirect_uri=self.public_url + CALLBACK
        )
        address = await self.provider.start_url(attempt)
        self._attempts[state] = attempt, _hash(cookie), place, self.clock()
        _drop_oldest(self._attempts, MOST_ATTEMPTS)
        return cookie, address

    async def finish(
        self, *, state: str, code: str, error: str, issuer: str | None, cookie: str
    ) -> tuple[str, str]:
        """The cookie of the new session and the place to return to.

        Raises SignInError, ReviewError, and RequestRefusedError (429) at too many exchanges of codes.
        """
        attempt, browser, place, at = self._attempts.pop(state, (None, "", "", 0.0))
        if attempt is None:
            raise SignInError("this sign-in is unknown, or was used before")
        if not hmac.compare_digest(_hash(cookie), browser):
            raise SignInError("this sign-in was started in another browser")
        if self.clock() - at > ATTEMPT_S:
            raise SignInError("this sign-in took longer than 10 minutes")
        if issuer not in {None, self.provider.issuer}:
            raise SignInError("the answer is of another provider")
        if error or not code:
            raise SignInError(f"the provider refused it{f' ({error})' if error else ''}")
        self._exchanges.spend("every browser")
        caller = await self.provider.redeem(code, attempt)
        holder = holder_of(self.source, caller) if caller is not None else None
        if holder is None:
            raise SignInError("the account has no role here, by name or by group")
        session = secrets.token_urlsafe(32)
        self._sessions[_hash(session)] = holder, self.clock() + self.provider.session_h * 3600
        _drop_oldest(self._sessions, MOST_SESSIONS)
        return session, place

    def holder(self, request: web.Request) -> Holder | None:
        """The person of the request's cookie, which counts only with the header of the console."""
        session = self._session(request) if CONSOLE in request.headers else None
        return session[0] if session else None

    def left_s(self, request: web.Request) -> float | None:
        """Seconds until the session ends; None if the request has none."""
        session = self._session(request)
        return session[1] - self.clock() if session else None

    def has_cookie(self, request: web.Request) -> bool:
        """Of a session, which may have ended."""
        return bool(request.cookies.get(self.cookies.session))

    def end(self, request: web.Request) -> None:
        self._sessions.pop(self._key(request), None)

    def _session(self, request: web.Request) -> tuple[Holder, float] | None:
        session = self._sessions.get(self._key(request))
        if session is not None and session[1] <= self.clock():
            del self._sessions[self._key(request)]
            return None
        return session

    def _key(self, request: web.Request) -> str:
        return _hash(request.cookies.get(self.cookies.session, ""))


def find_sign_in(
    authenticators: Collection[tuple[str, Authenticator]], public_url: str, clock: Callable[[], float]
) -> SignIn | None:
    """The first authenticator that offers it."""
    for name, provider in authenticators:
        if isinstance(provider, SignInProvider) and provider.offers_sign_in:
            return SignIn(source=name, provider=provider, public_url=public_url, clock=clock)
    return None


SIGNING_IN: web.AppKey[SignIn | None] = web.AppKey("sign_in")


def _hash(cookie: str) -> str:
    return hashlib.sha256(cookie.encode(errors="replace")).hexdigest()


def _drop_oldest(values: dict[str, Value], most: int) -> None:
    while len(values) > most:
        del values[next(iter(values))]
