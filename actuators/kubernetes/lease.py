"""A Lease as the lock of a daemon: one acts at a time, also where two have volumes of their own.

The rules are those of client-go's leader election. Times of other machines are never compared with the own
clock: a waiting daemon takes the Lease over once it has not changed for its duration, by the own monotonic
clock. The holder stops to act before that, by its own clock, if it could not renew the Lease meanwhile.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from tenacity import AsyncRetrying, retry_if_result, wait_fixed

from flettner.actuators.kubernetes.state_volume import describe_volatile
from flettner.agent.domain.errors import ActError, LockLostError
from flettner.agent.domain.ports import Now
from flettner.agent.retrying import ReasonLog, retry
from flettner.clients.kubernetes.client import LEASE, KubernetesClient
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import ConflictError, MissingError

DURATION_S: Final = 45
"""From a renewal until another daemon may take over; a node counts as lost after 40 s, too."""
DEADLINE_S: Final = 35.0  # from a renewal until the holder stops to act; the rest is for its open calls
RENEW_S: Final = 10.0  # one write, as often as a kubelet renews the Lease of its node
WAIT_S: Final = 2.0  # between two looks of a waiting daemon
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"  # MicroTime of the API

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLock:
    """The lock of all targets whose engine has this client and this name."""

    client: KubernetesClient
    name: str

    async def problems(self, state_dir: Path) -> Sequence[str]:
        problem = describe_volatile(state_dir)
        return [problem] if problem else []

    async def remove(self) -> None:
        """Delete the Lease for good."""
        await self.client.delete(LEASE, self.name)

    @asynccontextmanager
    async def hold(self, state_dir: Path, now: Now) -> AsyncIterator[None]:
        holder = LeaseHolder(self, identity_of(state_dir), now)
        await holder.acquire()
        body = asyncio.current_task()
        renewing = asyncio.create_task(holder.renew_until_lost(), name=f"lease {self.name}")

        def end_body(_: asyncio.Task[str]) -> None:
            if body is not None:
                body.cancel()

        renewing.add_done_callback(end_body)
        try:
            yield
        finally:
            renewing.remove_done_callback(end_body)
            if renewing.done():
                raise LockLostError(renewing.result())
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing
            await holder.release()


def identity_of(state_dir: Path) -> str:
    """Return the pod's uid, which a restarted container keeps; outside a pod the host and the directory."""
    return os.environ.get("POD_UID") or f"{socket.gethostname()}:{state_dir}"


class LeaseHolder:
    """One daemon's part in the Lease. `identity`: in `holderIdentity`."""

    def __init__(self, lock: LeaseLock, identity: str, now: Now) -> None:
        self._client, self._name = lock.client, lock.name
        self._identity, self._now = identity, now
        self._seen: Json = {}  # the Lease's spec when it last changed
        self._seen_at = 0.0  # loop time
        self._renewed_at = 0.0  # loop time before the request that renewed it
        self._version = ""  # resourceVersion of the own last write; empty: to be read
        self._why = ""  # the last attempt failed

    async def acquire(self) -> None:
        """Wait until this daemon holds the Lease."""
        acquiring = AsyncRetrying(
            retry=retry_if_result(bool),
            wait=wait_fixed(WAIT_S),
            before_sleep=ReasonLog("lock.waiting", {"lease": self._name}),
        )
        await retry(acquiring, self._try)
        log.info("lock.held", lease=self._name, holder=self._identity)

    async def renew_until_lost(self) -> str:
        """Renew the Lease; return why this daemon does not hold it any more."""
        while True:
            await asyncio.sleep(RENEW_S)
            renewing = AsyncRetrying(retry=retry_if_result(self._may_renew), wait=wait_fixed(WAIT_S))
            try:
                async with asyncio.timeout_at(self._renewed_at + DEADLINE_S):
                    if why := await retry(renewing, self._try):
                        return f"the Lease {self._name} is lost: {why}"
            except TimeoutError:
                why = self._why or "the API server does not answer"
                return f"the Lease {self._name} could not be renewed for {DEADLINE_S:g} s: {why}"

    async def release(self) -> None:
        """Let the next daemon start at once."""
        with suppress(ActError, TimeoutError):
            async with asyncio.timeout(RENEW_S):
                lease = await self._client.get(LEASE, self._name)
                if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                    await self._change(lease["metadata"]["resourceVersion"], {"holderIdentity": ""})
                    log.info("lock.released", lease=self._name)

    def _may_renew(self, why: str) -> bool:
        """Whether the renewal failed, and no other daemon holds the Lease."""
        return bool(why) and self._holder() in {"", self._identity}

    def _holder(self) -> str:
        return self._seen.get("holderIdentity") or ""

    async def _try(self) -> str:
        """Acquire or renew the Lease; return "" if that succeeded, else why it did not."""
        self._why = await self._acquire()
        return self._why

    async def _acquire(self) -> str:
        began = asyncio.get_running_loop().time()
        try:
            lease = await self._write(self._version) if self._version else await self._read_and_write(began)
        except (ConflictError, MissingError):
            self._version = ""
            return "another client has changed it at the same time"
        except ActError as error:
            return error.why
        if lease is None:
            return f"another daemon holds it: {self._holder()}"
        self._look(lease["spec"], began)
        self._renewed_at, self._version = began, lease["metadata"]["resourceVersion"]
        return ""

    async def _read_and_write(self, at: float) -> Json | None:
        """None: another daemon holds the Lease."""
        lease = await self._client.get(LEASE, self._name)
        if lease is None:
            return await self._client.create(LEASE, self._new())
        self._look(lease.get("spec") or {}, at)
        if self._is_held_by_other(at):
            return None
        return await self._write(lease["metadata"]["resourceVersion"])

    def _look(self, spec: Json, at: float) -> None:
        if spec != self._seen:
            self._seen, self._seen_at = spec, at

    def _is_held_by_other(self, at: float) -> bool:
        lasts_s = self._seen.get("leaseDurationSeconds") or DURATION_S
        return self._holder() not in {"", self._identity} and at < self._seen_at + lasts_s

    def _claim(self) -> Json:
        at = self._now().strftime(_TIME)
        spec: Json = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_S,
            "renewTime": at,
        }
        if self._holder() != self._identity:
            spec["acquireTime"] = at
            spec["leaseTransitions"] = (self._seen.get("leaseTransitions") or 0) + bool(self._seen)
        return spec

    def _new(self) -> Json:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": self._claim(),
        }

    async def _write(self, version: str) -> Json:
        return await self._change(version, self._claim())

    async def _change(self, version: str, spec: Json) -> Json:
        """Change it unless another client has changed it since this version."""
        change: Json = {"metadata": {"resourceVersion": version}, "spec": spec}
        return await self._client.patch(LEASE, self._name, change)
