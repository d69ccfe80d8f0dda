"""The bucket of clients that a request belongs to, by what the proxy notes of its client.

The proxy sends buckets, not values: see `flettner/actuators/envoy/client.lua`. A client is told from others
by its address. Where one address sends most requests it is a gateway, and the key tells its clients apart;
where one key does, or there is none, the session. Where one session sends most requests it has no bucket:
nothing could be compared without it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from flettner.agent.domain.request_counts import CLIENT_BUCKETS

MOST: Final = 2 / 3  # of the requests, with which an address, key or session is no client among others
LEAST: Final = 10
"""Requests, before which nobody is taken to send most. A restarted daemon takes as many requests of a gateway
for those of one client, whose evidence against green may be set aside: so few cannot hide a bad green.
"""
REMEMBERED: Final = 10_000  # requests, older ones count less


class ClientBuckets(NamedTuple):
    """Numbers from 0 to 63; None: the request has none, or it is not known."""

    address: int | None
    key: int | None
    session: int | None


UNKNOWN: Final = ClientBuckets(None, None, None)


def read_buckets(text: object) -> ClientBuckets:
    """Read the proxy's note, such as "17.3.-"; UNKNOWN if it is of another form."""
    parts = text.split(".") if isinstance(text, str) else []
    if len(parts) != len(ClientBuckets._fields):
        return UNKNOWN
    return ClientBuckets(*map(_bucket, parts))


def _bucket(text: str) -> int | None:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 2 else CLIENT_BUCKETS  # noqa: PLR2004
    return number if number < CLIENT_BUCKETS else None


@dataclass(slots=True)
class _Shares:
    """The share of each bucket in the requests; those without a value are in `total` only."""

    counts: list[float] = field(default_factory=lambda: [0.0] * CLIENT_BUCKETS)
    total: float = 0.0

    def add(self, bucket: int | None) -> None:
        self.total += 1
        if bucket is not None:
            self.counts[bucket] += 1
        if self.total >= REMEMBERED:
            self.counts = [count / 2 for count in self.counts]
            self.total /= 2

    def sends_most(self, bucket: int) -> bool:
        return self.total >= LEAST and self.counts[bucket] > MOST * self.total


@dataclass(slots=True)
class ClientFinder:
    """One target's. The memory is bounded: three counts of each bucket."""

    _shares: tuple[_Shares, ...] = field(
        default_factory=lambda: tuple(_Shares() for _ in ClientBuckets._fields), init=False
    )

    def bucket_of(self, client: ClientBuckets) -> int | None:
        """The bucket of a request's client; None without one. Counts the request."""
        return next(self._buckets(client), None) if client != UNKNOWN else None

    def _buckets(self, client: ClientBuckets) -> Iterator[int]:
        for shares, bucket in zip(self._shares, client, strict=True):
            shares.add(bucket)
            if bucket is not None and not shares.sends_most(bucket):
                yield bucket
