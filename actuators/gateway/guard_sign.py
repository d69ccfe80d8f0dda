"""The guard's sign of life: a Lease that it renews. Whether it changes counts, not the time that it names."""

import asyncio
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.primitives.waiting import poll_until

LEASE_NAME: Final = "flettner-guard"
BEAT_S: Final = 5.0
GONE_S: Final = 4 * BEAT_S
"""Without a new sign for so long there is no guard: three signs may be lost to an API server that is busy."""

_POLL_S = 0.5
_Signs = dict[KubernetesClient, "GuardSign"]
_signs: WeakKeyDictionary[asyncio.AbstractEventLoop, _Signs] = WeakKeyDictionary()


@dataclass(slots=True, kw_only=True)
class GuardSign:
    """Follows the Lease; what was written before the first look is no sign. Use `sign_of`."""

    client: KubernetesClient
    _looked_at: float | None = None  # loop time
    _last: str | None = None
    _seen_at: float | None = None  # loop time of the latest change

    async def look(self) -> bool:
        """Whether the guard has given a sign lately; the Lease is read each half second at most.

        Raises ActError.
        """
        now = asyncio.get_running_loop().time()
        if self._looked_at is None or now - self._looked_at >= _POLL_S:
            lease = await self.client.get(kubernetes.LEASE, LEASE_NAME)
            sign = str(((lease or {}).get("spec") or {}).get("renewTime", ""))
            now = self._looked_at = asyncio.get_running_loop().time()
            if self._last is not None and sign not in {"", self._last}:
                self._seen_at = now
            self._last = sign
        return self._seen_at is not None and now - self._seen_at < GONE_S

    async def wait(self, within_s: float) -> bool:
        """Look until the guard gives a sign."""
        return await poll_until(self.look, _POLL_S, within_s)


def sign_of(client: KubernetesClient) -> GuardSign:
    """Return the one that all targets of this event loop share, so that they wait for a sign only once."""
    signs = _signs.setdefault(asyncio.get_running_loop(), {})
    return signs.setdefault(client, GuardSign(client=client))
