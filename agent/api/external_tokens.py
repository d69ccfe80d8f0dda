"""Bearer tokens that flettner did not make: authenticators identify their callers.

An answer is kept for some seconds, so that a request rarely waits for another service, and a flood of
requests does not become one of reviews.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from flettner.agent.api.tokens import RANKS, SHAPE, Holder
from flettner.agent.config.listen import LONGEST_NAME, Role
from flettner.agent.domain.errors import FlettnerError

FRESH_S: Final = 30.0  # how long a revoked token is still accepted at most, while reviews are possible
REFUSED_S: Final = 5.0  # for which an unknown token is not asked about again
AWAY_S: Final = 300.0  # how long an accepted token lasts while reviews are not possible
MOST_KEPT: Final = 1000
MOST_REVIEWS: Final = 4  # at once
LONGEST_TOKEN: Final = 16 * 2**10  # bytes
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifiedCaller:
    """`name`: unique among the callers of its authenticator."""

    name: str
    role: Role


def highest_role(
    name: str, member_of: Iterable[str], *, users: Mapping[str, Role], groups: Mapping[str, Role]
) -> Role | None:
    """The highest role that the config gives to a user by name or by group; None without one."""
    roles = [users.get(name), *(groups.get(group) for group in member_of)]
    return max((role for role in roles if role is not None), key=RANKS.__getitem__, default=None)


class ReviewError(FlettnerError):
    """Whether a token is valid cannot be found out now."""


class Authenticator(Protocol):
    async def identify(self, token: str) -> IdentifiedCaller | None:
        """None: the token is not valid, or its owner has no role here. Raises ReviewError."""
        ...


@dataclass(slots=True)
class ExternalTokens:
    """`authenticators`: by the name in the config; the first that knows a token counts."""

    authenticators: Mapping[str, Authenticator]
    clock: Callable[[], float]
    _accepted: dict[str, tuple[Holder, float]] = field(default_factory=dict)  # and when, by digest
    _refused: dict[str, float] = field(default_factory=dict)  # when, apart: a flood displaces no good one
    _reviews: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_REVIEWS))
    _reviews_of_known: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_REVIEWS))
    """Apart: strangers that wait for a slow service delay nobody whom it has accepted."""

    async def holder(self, text: str) -> Holder | None:
        """The holder of this token; None if no authenticator knows it. Raises ReviewError."""
        if not self.authenticators or not _may_be_external(text):
            return None
        key = _digest_of(text)
        known = self._find_accepted(key, AWAY_S)
        if self._is_refused(key) or (known and self._find_accepted(key, FRESH_S)):
            return known
        async with self._reviews_of_known if known else self._reviews:
            try:
                holder = await self._identify(text)
            except ReviewError:
                if known:
                    return known
                raise
        self._keep(key, holder)
        return holder

    def asks(self, text: str) -> bool:
        """Whether a stranger's token makes requests to another service: it was not accepted lately."""
        if not self.authenticators or not _may_be_external(text):
            return False
        key = _digest_of(text)
        return not self._is_refused(key) and self._find_accepted(key, AWAY_S) is None

    def _find_accepted(self, key: str, within_s: float) -> Holder | None:
        holder, at = self._accepted.get(key, (None, 0.0))
        return holder if self.clock() - at < within_s else None

    def _is_refused(self, key: str) -> bool:
        return key in self._refused and self.clock() - self._refused[key] < REFUSED_S

    def _keep(self, key: str, holder: Holder | None) -> None:
        self._accepted.pop(key, None)
        self._refused.pop(key, None)
        if holder is None:
            self._refused[key] = self.clock()
        else:
            self._accepted[key] = holder, self.clock()
        drop_oldest(self._accepted, MOST_KEPT)
        drop_oldest(self._refused, MOST_KEPT)

    async def _identify(self, text: str) -> Holder | None:
        for source, authenticator in self.authenticators.items():
            caller = await authenticator.identify(text)
            if caller is not None and (holder := holder_of(source, caller)):
                return holder
        return None


def holder_of(source: str, caller: IdentifiedCaller) -> Holder | None:
    """The same for a token and a session of a person; None if the name cannot be shown."""
    name = _principal(f"{source} {caller.name}")
    return Holder(id=f"{source}-{_digest(caller.name)}", role=caller.role, principal=name) if name else None


def _digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def drop_oldest(values: dict[str, Value], most: int) -> None:
    while len(values) > most:
        del values[next(iter(values))]


def _may_be_external(text: str) -> bool:
    return bool(text) and text.isascii() and len(text) <= LONGEST_TOKEN and not SHAPE.fullmatch(text)


def _principal(name: str) -> str:
    """The name for the audit; a long one ends in a digest, which keeps it unique. "": it cannot be shown."""
    if not name.isprintable():
        return ""
    if len(name.encode()) <= LONGEST_NAME:
        return name
    end = f"…{_digest(name)}"
    return name.encode()[: LONGEST_NAME - len(end.encode())].decode(errors="ignore") + end


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]
