"""The bound gateway: writes the split of one target into its HTTPRoute, and waits until it is in force."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import uuid4

import structlog

from flettner.actuators.gateway import obstacles
from flettner.actuators.gateway.acceptance import find_refusals, find_waiting, is_current
from flettner.actuators.gateway.backends import Backends, describe_backends, service_of, split_backends
from flettner.actuators.gateway.guard_sign import BEAT_S, sign_of
from flettner.actuators.gateway.pods import find_other_pods, select_same_pods
from flettner.actuators.gateway.record import SplitRecord, annotation, end_lease, record_of, write_record
from flettner.actuators.gateway.rules import backends_of, choose_rules, home_of, rule_obstacles
from flettner.actuators.shared.split import check, without_lease
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import ActError, FencedError
from flettner.agent.domain.model import Hold
from flettner.agent.domain.ports import Site, TrafficSeen
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import AwayError, ConflictError
from flettner.primitives.waiting import poll_until

log = structlog.get_logger(__name__)

THIS_PROCESS: Final = uuid4().hex[:12]
"""Distinguishes two daemons that started at once with the same epoch."""

LOOK_S = 5.0  # between two looks at an HTTPRoute without a lease, or at one that a third party has
RENEWED_AFTER = 1 / 3  # of a lease: two renewals may fail before it ends
_POLL_S = 0.2


@dataclass(kw_only=True)
class GatewayTraffic:
    """At rest the rule has the backends that people wrote; while servers differ, one for each server."""

    client: KubernetesClient
    site: Site
    name: str
    rule: str
    confirm_s: float
    settle_s: float
    counts_requests: bool = False
    hold: Hold | None = None  # the Gateway API has no such rule
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _kept: Route | None = None  # in force at the last look
    _due_s: float = 0.0  # loop time of the next look
    _refused: ActError | None = None  # why the last look could not keep the route, until the next one
    _changed_s: float | None = None  # loop time of the last change of backends

    @property
    def _key(self) -> str:
        return annotation(self.site.target)

    async def problems(self) -> Sequence[str]:
        return await obstacles.find_problems(
            self.client, self.name, rule=self.rule, key=self._key, guard=sign_of(self.client)
        )

    async def observe(self) -> TrafficSeen | None:
        document = await self.client.get(kubernetes.HTTP_ROUTE, self.name)
        record = record_of(document, self._key) if document else None
        if document is None or record is None:
            return None
        return TrafficSeen(
            weights=record.weights,
            addresses=record.addresses,
            epoch=record.epoch,
            leased=record.leased,
            listening=not find_waiting(document),
        )

    async def route(self, route: Route) -> None:
        """Write the split, wait until each gateway has accepted it, then `settle_s`, except under a lease.

        A gateway accepts before all its proxies have the change: only a server that has had no weight for
        `settle_s` may be drained. A leased split stops no server.
        """
        check(route)
        async with self._turn:
            if route.leased and not await sign_of(self.client).wait(2 * BEAT_S):
                raise ActError(f"{obstacles.NO_GUARD}; no split with a lease is made", external=True)
            await self._write(route, keep=False)
            await self._wait_until_settled(route)

    async def keep_alive(self, route: Route) -> None:
        """Renew the lease when a third of it is spent; without one, look every LOOK_S.

        A refusal holds as long: only an API server that does not answer is asked again at once.
        """
        check(route)
        async with self._turn:
            if route == self._kept and asyncio.get_running_loop().time() < self._due_s:
                if self._refused is not None:
                    raise self._refused.with_traceback(None)
                return
            await self._keep(route)
            if not await sign_of(self.client).look() and route.leased:
                log.warning("gateway.no_guard", route=self.name, why=obstacles.NO_GUARD)

    async def _keep(self, route: Route) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await self._write(route, keep=True)
        except (AwayError, FencedError):
            raise
        except ActError as error:
            self._kept, self._refused, self._due_s = route, error, began + _look_s(route)
            raise

    async def end_lease(self) -> bool:
        async with self._turn:
            done = False

            async def ended(document: Json) -> list[Json] | None:
                nonlocal done
                record = record_of(document, self._key)
                done = record is not None and record.leased is not None
                if record is None or not done or record.ended:
                    return None
                return end_lease(document, self._key, record)

            await self.client.update(kubernetes.HTTP_ROUTE, self.name, ended)
            return done

    async def in_flight(self, server: str) -> int | None:  # noqa: ARG002 - of the port
        """Only the engine knows."""
        return None

    async def is_settled(self) -> bool:
        """`route` has waited `settle_s`; a gateway tells no more."""
        return True

    async def clear(self) -> Sequence[str]:
        """Give the HTTPRoute back; return what was done, once the gateway has had time to follow."""
        if await self.observe() is None:
            return []
        await self.stop()
        await asyncio.sleep(self.settle_s)
        return [f"the HTTPRoute {self.name} is as people wrote it"]

    async def stop(self) -> None:
        """Give the rule back to people as they wrote it, and remove the record."""

        async def given_back(document: Json) -> list[Json] | None:
            record = record_of(document, self._key)
            if record is None:
                return None
            rules = [at for at in choose_rules(document, self.rule) if _is_ours(document, at, record)]
            return write_record(document, self._key, None, rules, record.home)

        async with self._turn:
            await self.client.update(kubernetes.HTTP_ROUTE, self.name, given_back)

    async def _write(self, route: Route, *, keep: bool) -> None:
        """`keep`: write a route that is missing or due, unless there is a later one of this daemon."""
        before: Json = {}
        began = asyncio.get_running_loop().time()

        async def changed(document: Json) -> list[Json] | None:
            before.update(document)
            return await self._change(document, route, keep=keep)

        written = await self.client.update(kubernetes.HTTP_ROUTE, self.name, changed)
        if written["metadata"].get("generation") != before["metadata"].get("generation"):
            self._changed_s = asyncio.get_running_loop().time()
        record = record_of(written, self._key)
        if record is not None and record.is_of(route):
            await self._until_accepted(written, before)
            self._kept = route
        self._refused, self._due_s = None, began + _look_s(route)

    async def _change(self, document: Json, route: Route, *, keep: bool) -> list[Json] | None:
        """The patch that the route needs; None: nothing. Raises ActError if a third party has the rule."""
        record = record_of(document, self._key)
        self._refuse_after(record)
        if keep and record and (record.epoch, record.number) > (self.site.epoch, route.number):
            return None
        namespace = await self.client.own_namespace()
        home = record.home if record else await self._adopt(document, route, namespace)
        written, back = await self._backends(route, record, home, namespace)
        rules = self._own_rules(document, home, record.expected if record else home, written)
        wanted = SplitRecord(
            epoch=self.site.epoch,
            process=THIS_PROCESS,
            number=route.number,
            renewal=record.renewal if record else 0,
            weights=dict(route.weights),
            addresses={server.name: server.address for server in route.servers},
            fallback=route.fallback,
            leased=route.leased,
            lease_s=route.lease_s,
            closed_s=route.closed_s,
            home=home,
            written=written,
            back=back,
        )
        in_place = all(backends_of(document, at) == list(written) for at in rules)
        if wanted == record and in_place and not route.leased:
            return None
        return write_record(document, self._key, replace(wanted, renewal=wanted.renewal + 1), rules, written)

    def _refuse_after(self, record: SplitRecord | None) -> None:
        """Raises FencedError if another daemon that is as new, or newer, has written."""
        if record is None or (record.epoch, record.process) == (self.site.epoch, THIS_PROCESS):
            return
        if record.epoch >= self.site.epoch:
            raise FencedError(
                f"HTTPRoute {self.name} is of epoch {record.epoch}, this daemon is {self.site.epoch}: "
                "another one has taken over"
            )

    async def _adopt(self, document: Json, route: Route, namespace: str) -> Backends:
        """The backends of people, if flettner may split them. Raises ActError."""
        rules = choose_rules(document, self.rule)
        home = home_of(document, rules)
        problems = rule_obstacles(document, rules, home, namespace)
        problems = problems or await obstacles.find_service_problems(self.client, home)
        if not problems:
            services = [service_of(server.address, namespace)[0] for server in route.servers]
            if other_pods := await find_other_pods(self.client, home, services):
                why = f"also selects pods that are not of the target, {', '.join(other_pods)}"
                problems = [f"{describe_backends(home)} {why}: name another"]
        if problems:
            raise ActError(f"HTTPRoute {self.name}: {'; '.join(problems)}", external=True)
        return home

    async def _backends(
        self, route: Route, record: SplitRecord | None, home: Backends, namespace: str
    ) -> tuple[Backends, Backends]:
        """Those of the split, and those after its lease."""
        if record is not None and route.leased and record.is_of(route):
            return record.written, record.back  # a renewal
        written = await self._render(route, home, namespace)
        return written, await self._render(without_lease(route), home, namespace) if route.leased else written

    async def _render(self, route: Route, home: Backends, namespace: str) -> Backends:
        """People's own backends where they select the pods of the split's servers, in equal parts."""
        weights = {name: weight for name, weight in route.weights.items() if weight}
        even = weights and not route.leased and max(weights.values()) - min(weights.values()) <= 1
        services = [
            service_of(server.address, namespace)[0] for server in route.servers if server.name in weights
        ]
        if even and await select_same_pods(self.client, home, services):
            return list(home)
        return split_backends(route, route.weights, home[0], namespace)

    def _own_rules(self, document: Json, home: Backends, expected: Backends, wanted: Backends) -> list[int]:
        """The places of the target's rules; without the option: of those that flettner or people left so.

        Raises ActError if one of them has other backends than flettner left, and other than it wants, or if
        another rule names a Service of the target.
        """
        ours = [list(expected), list(wanted)]
        backends = [backends_of(document, at) for at in range(len(document["spec"].get("rules") or []))]
        chosen = choose_rules(document, self.rule)
        if not self.rule:
            chosen = [at for at in chosen if backends[at] in ours]
        services = {backend["name"] for backend in (*home, *expected)}
        strange = [at for at in chosen if backends[at] not in ours] + [
            at
            for at, listed in enumerate(backends)
            if at not in chosen and services & {ref["name"] for ref in listed}
        ]
        if chosen and not strange:
            return chosen
        named = (
            "; ".join(f"rule {at}: {describe_backends(backends[at])}" for at in strange) or "no rule is left"
        )
        raise ActError(
            f"drift: a third party changed the backends of HTTPRoute {self.name} ({named}), and flettner "
            f"had left {describe_backends(expected)}; it writes nothing until they are back, or until the "
            f"annotation {self._key} is removed and the only backend is the Service of the target's pods",
            external=True,
        )

    async def _until_accepted(self, written: Json, before: Json) -> None:
        """Raises ActError if a gateway does not accept in time; a split that one refuses is reverted."""
        document: Json = {}

        async def is_accepted() -> bool:
            nonlocal document
            document = (document and await self.client.get(kubernetes.HTTP_ROUTE, self.name)) or written
            return not find_waiting(document)

        if await poll_until(is_accepted, _POLL_S, self.confirm_s):
            return
        refusals = find_refusals(document) if is_current(document) else []
        if refusals:
            await self._restore_split(written, before)
        why = refusals or find_waiting(document)
        raise ActError(f"HTTPRoute {self.name}: {'; '.join(why)}", external=True)

    async def _restore_split(self, written: Json, before: Json) -> None:
        """Write the former split, unless the HTTPRoute has changed since."""
        rules = choose_rules(written, self.rule)
        if written["metadata"].get("generation") == before["metadata"].get("generation"):
            return
        former = backends_of(before, rules[0])
        with suppress(ConflictError):
            now = await self.client.get(kubernetes.HTTP_ROUTE, self.name) or written
            if now["metadata"].get("generation") == written["metadata"].get("generation"):
                change = write_record(now, self._key, record_of(before, self._key), rules, former)
                await self.client.patch(kubernetes.HTTP_ROUTE, self.name, change)

    async def _wait_until_settled(self, route: Route) -> None:
        if route.leased:
            return
        now = asyncio.get_running_loop().time()
        if self._changed_s is None:  # before this process
            self._changed_s = now
        await asyncio.sleep(max(0.0, self._changed_s + self.settle_s - now))


def _look_s(route: Route) -> float:
    return route.lease_s * RENEWED_AFTER if route.leased else LOOK_S


def _is_ours(document: Json, at: int, record: SplitRecord) -> bool:
    return backends_of(document, at) == list(record.expected)
