"""Ends the lease of a daemon that is dead: the guard of the HTTPRoutes of a namespace.

    python -m flettner.actuators.gateway.guard

It runs in a Deployment of its own. For each HTTPRoute that flettner splits it notes, by its own clock, when
the number of the renewal changed. Once that is longer ago than the lease lasts, it puts the backends of the
annotation back, in one write that is refused if the daemon wrote meanwhile. At the start of the guard every
lease counts as just renewed. While it cannot end a lease it gives no sign of life, so that no daemon begins
a canary that relies on it. It needs the rights to get, list and patch httproutes, and to create and patch
the Lease by which daemons know that it runs.
"""

import argparse
import asyncio
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from flettner.actuators.gateway.guard_sign import BEAT_S, LEASE_NAME
from flettner.actuators.gateway.record import SplitRecord, end_lease, record_of, records, rules_with
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Now
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import AwayError, MissingError
from flettner.primitives.wall_clock import utc_now

log = structlog.get_logger(__name__)

LOOK_S = 1.0  # between two looks at the HTTPRoutes: so much later than the lease it may end
_SHOWN = ("number", "leased", "lease_s")

Renewal = tuple[int, int, int]  # epoch, number and renewal of a split


@dataclass(slots=True, kw_only=True)
class Guard:
    """`beat_s`: between two signs of life."""

    client: KubernetesClient
    now: Now
    beat_s: float = BEAT_S
    _seen: dict[tuple[str, str], tuple[Renewal, float]] = field(default_factory=dict)  # with the loop time
    _beat_at: float | None = None
    _answers: bool = True
    _stuck: dict[tuple[str, str], str] = field(default_factory=dict)  # leases that cannot be ended, and why

    async def run(self, ended: asyncio.Event) -> None:
        """Look until `ended` is set, also after errors of the API server."""
        while not ended.is_set():
            try:
                await self.look()
                if not self._stuck:
                    await self._give_sign()
                self._answers = True
            except ActError as error:
                if self._answers:
                    log.warning("guard.routes_unreadable", why=error.why)
                self._answers = False
            with suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_S, self.beat_s)):
                    await ended.wait()

    async def look(self) -> None:
        """End each lease that has not been renewed in time. Raises ActError."""
        now = asyncio.get_running_loop().time()
        leased = {
            (document["metadata"]["name"], key): record
            for document in await self.client.find(kubernetes.HTTP_ROUTE)
            for key, record in records(document)
            if record.leased is not None and not record.ended
        }
        self._seen = {place: seen for place, seen in self._seen.items() if place in leased}
        self._stuck = {place: why for place, why in self._stuck.items() if place in leased}
        for place, record in leased.items():
            renewal = _renewal(record)
            sighting = self._seen.get(place)
            if sighting is None or sighting[0] != renewal:
                self._seen[place] = renewal, now
            elif now - sighting[1] >= record.lease_s:
                await self._end(*place, renewal)

    async def _end(self, route: str, key: str, renewal: Renewal) -> None:
        async def ended(document: Json) -> list[Json] | None:
            record = record_of(document, key)
            if record is None or record.ended or _renewal(record) != renewal:
                return None
            if not rules_with(document, record.written):  # a third party has the rules
                return None
            log.warning("guard.lease_ended", route=route, **{name: getattr(record, name) for name in _SHOWN})
            return end_lease(document, key, record)

        try:
            await self.client.update(kubernetes.HTTP_ROUTE, route, ended)
        except (AwayError, MissingError):
            pass  # the next look tells
        except ActError as error:
            if (route, key) not in self._stuck:
                log.warning("guard.lease_not_ended", route=route, why=error.why)
            self._stuck[route, key] = error.why
        else:
            self._stuck.pop((route, key), None)

    async def _give_sign(self) -> None:
        """Renew the Lease; its time is for people, daemons only see that it changes."""
        now = asyncio.get_running_loop().time()
        if self._beat_at is not None and now - self._beat_at < self.beat_s:
            return
        spec = {"holderIdentity": LEASE_NAME, "renewTime": _micro_time(self.now())}
        try:
            await self.client.patch(kubernetes.LEASE, LEASE_NAME, {"spec": spec})
        except MissingError:
            await self.client.create(kubernetes.LEASE, {"metadata": {"name": LEASE_NAME}, "spec": spec})
        self._beat_at = now


def _renewal(record: SplitRecord) -> Renewal:
    return record.epoch, record.number, record.renewal


def _micro_time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flettner.actuators.gateway.guard", description=__doc__)
    parser.add_argument("--namespace", default="", help="default: that of the pod, or of the kubeconfig")
    parser.add_argument("--kubeconfig", default="", help="a file; default: the pod's service account")
    options = parser.parse_args()
    client = KubernetesClient(kubeconfig=options.kubeconfig, namespace=options.namespace)
    asyncio.run(_run(Guard(client=client, now=utc_now)))
    return 0


async def _run(guard: Guard) -> None:
    """Run until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await guard.run(ended)


if __name__ == "__main__":
    sys.exit(main())
