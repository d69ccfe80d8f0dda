"""Bearer tokens that flettner did not make: authenticators identify their callers.

An answer is kept for some seconds, so that a request rarely waits for another service, and a flood of
requests does not become one of reviews.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from flettner.agent.api.tokens import RANKS, SHAPE, Holder
from flettner.agent.config.listen import LONGEST_NAME, Role
from flettner.agent.domain.errors import FlettnerError

FRESH_S: Final = 30.0  # how long a revoked token is still accepted at most, while reviews are possible
REFUSED_S: Final = 5.0  # for which an unknown token is not asked about again
AWAY_S: Final = 300.0  # how long an accepted token lasts while reviews are not possible
MOST_KEPT: Final = 1000
MOST_REVIEWS: Final = 4  # at once
LONGEST_TOKEN: Final = 16 * 2**10  # bytes


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
    _kept: dict[str, tuple[Holder | None, float]] = field(default_factory=dict)  # and when, by digest
    _reviews: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_REVIEWS))

    async def holder(self, text: str) -> Holder | None:
        """The holder of this token; None if no authenticator knows it. Raises ReviewError."""
        if not self.authenticators or not _may_be_external(text):
            return None
        key = hashlib.sha256(text.encode()).hexdigest()
        if (cached := self._kept.get(key)) and self._age_s(cached) < (FRESH_S if cached[0] else REFUSED_S):
            return cached[0]
        async with self._reviews:
            try:
                holder = await self._identify(text)
            except ReviewError:
                if cached and cached[0] and self._age_s(cached) < AWAY_S:
                    return cached[0]
                raise
        self._kept.pop(key, None)
        self._kept[key] = holder, self.clock()
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return holder

    def _age_s(self, cached: tuple[Holder | None, float]) -> float:
        return self.clock() - cached[1]

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
