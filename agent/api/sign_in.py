"""Sign-in of people in a browser by an identity provider, and the sessions that their cookies name.

The authorization code flow of OpenID Connect Core 1.0 (3.1), with PKCE (RFC 7636) and the issuer of RFC 9207.
An attempt is kept by its browser alone, so that a flood of them displaces nobody's. Sessions are kept in
memory, by random names in cookies. A restart ends both, as it ends the key of attempts.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable
from urllib.parse import urlsplit

from aiohttp import web

from flettner.agent.api.external_tokens import Authenticator, IdentifiedCaller, drop_oldest, holder_of
from flettner.agent.api.rate_limits import PIECE, RateLimits
from flettner.agent.api.seldom_log import SeldomLog
from flettner.agent.api.tokens import Holder
from flettner.agent.domain.errors import FlettnerError

SIGN_IN, CALLBACK = "/v1/sign-in", "/v1/sign-in/callback"
PATHS: Final = frozenset({SIGN_IN, CALLBACK})  # that a browser asks for before it has a session
OFFER = "Flettner-Sign-In"
"""Header of a 401: the host of the provider by which people can sign in."""
CONSOLE = "Flettner-Console"
"""Header with which a cookie counts: only a page of this origin can set it, without a preflight (CORS)."""
ATTEMPT_S = 600.0  # in which a person signs in at the provider
MOST_USED, MOST_SESSIONS = 10_000, 1000  # the oldest is dropped
MOST_SESSIONS_EACH = 20  # of one person, whose oldest is dropped: nobody can end the sessions of others
EXCHANGES_PER_S, MOST_EXCHANGES_AT_ONCE = 5.0, 100.0  # of all browsers: each is a request to the provider
REFUSED_PER_S, MOST_REFUSED_AT_ONCE = 0.5, 20.0  # exchanges of one client that give no session


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
        return _encode(hashlib.sha256(self.verifier.encode()).digest())


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
    away: SeldomLog = field(default_factory=lambda: SeldomLog("api.sign_in_not_possible"))
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _offset_s: int = field(default_factory=lambda: secrets.randbelow(2**40))
    """Of the times in cookies, which tell nobody when the daemon started."""
    _used: dict[str, None] = field(default_factory=dict)  # states of attempts, oldest first
    _sessions: dict[str, tuple[Holder, float]] = field(default_factory=dict)
    """By the hash of the cookie: with the time of the end; oldest first."""
    _exchanges: RateLimits = field(init=False)
    _refused: RateLimits = field(init=False)

    def __post_init__(self) -> None:
        self._exchanges = RateLimits(self.clock, per_s=EXCHANGES_PER_S, burst=MOST_EXCHANGES_AT_ONCE)
        self._refused = RateLimits(self.clock, per_s=REFUSED_PER_S, burst=MOST_REFUSED_AT_ONCE)

    @property
    def cookies(self) -> Cookies:
        return Cookies(is_https=urlsplit(self.public_url).scheme == "https")

    @property
    def host(self) -> str:
        return urlsplit(self.provider.issuer).hostname or self.source

    async def begin(self, place: str) -> tuple[str, str]:
        """The cookie of a new attempt and the provider's page. Raises ReviewError."""
        at_s = self._offset_s + int(self.clock())
        cookie = f"{secrets.token_urlsafe(32)}.{at_s}.{_encode(place.encode())}"
        return cookie, await self.provider.start_url(self._attempt_of(cookie))

    async def finish(
        self, *, state: str, code: str, error: str, issuer: str | None, cookie: str, client: str
    ) -> tuple[str, str]:
        """The cookie of the new session and the place to return to. `client`: where the request comes from.

        Raises SignInError, ReviewError, and RequestRefusedError (429) at too many exchanges of codes.
        """
        attempt = self._attempt_of(cookie)
        if not hmac.compare_digest(attempt.state.encode(), state.encode(errors="replace")):
            raise SignInError("this sign-in is unknown, or was started in another browser")
        _, at_s, place = cookie.split(".")  # as signed by the state
        if self._offset_s + self.clock() - int(at_s) > ATTEMPT_S:
            raise SignInError("this sign-in took longer than 10 minutes")
        if issuer not in {None, self.provider.issuer}:
            raise SignInError("the answer is of another provider")
        if error or not code:
            raise SignInError(f"the provider refused it{f' ({error})' if error else ''}")
        if state in self._used:
            raise SignInError("this sign-in was used before")
        holder = await self._exchange(code, attempt, client)
        return self._open(holder), base64.urlsafe_b64decode(place + "==").decode()

    def _attempt_of(self, cookie: str) -> SignInAttempt:
        """What belongs to the cookie: nobody without the key finds another cookie for a state."""
        state, nonce, verifier = (self._derive(name, cookie) for name in ("state", "nonce", "verifier"))
        return SignInAttempt(
            state=state, nonce=nonce, verifier=verifier, redirect_uri=self.public_url + CALLBACK
        )

    def _derive(self, name: str, cookie: str) -> str:
        return _encode(hmac.digest(self._secret, f"{name} {cookie}".encode(errors="replace"), "sha256"))

    async def _exchange(self, code: str, attempt: SignInAttempt, client: str) -> Holder:
        """The person. Only what gives no session counts against a client: many may share an address."""
        self._refused.spend(client)
        self._exchanges.spend("every browser")
        self._used[attempt.state] = None
        drop_oldest(self._used, MOST_USED)
        caller = await self.provider.redeem(code, attempt)
        holder = holder_of(self.source, caller) if caller is not None else None
        if holder is None:
            raise SignInError("the account has no role here, by name or by group")
        self._refused.charge(client, -PIECE)
        return holder

    def _open(self, holder: Holder) -> str:
        """A new session; returns its cookie."""
        session = secrets.token_urlsafe(32)
        self._sessions[_hash(session)] = holder, self.clock() + self.provider.session_h * 3600
        own = [key for key, (other, _) in self._sessions.items() if other.id == holder.id]
        for key in own[:-MOST_SESSIONS_EACH]:
            del self._sessions[key]
        drop_oldest(self._sessions, MOST_SESSIONS)
        return session

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


def _encode(value: bytes) -> str:
    """In base64 for URLs and cookies, without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _hash(cookie: str) -> str:
    return hashlib.sha256(cookie.encode(errors="replace")).hexdigest()
