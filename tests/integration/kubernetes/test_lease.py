"""One daemon acts at a time, with a Lease of a real API server."""

import asyncio
import signal
from pathlib import Path

import pytest

from flettner.actuators.kubernetes.lease import LeaseLock
from flettner.agent.domain.errors import LockLostError
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.primitives.wall_clock import utc_now
from tests.support.kubernetes.engines import ROLE, serve
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.site import site_of

pytestmark = pytest.mark.timeout(240)


async def lock_of(here: Namespace) -> LeaseLock:
    user = await here.user("flettner", *ROLE)
    return LeaseLock(client=KubernetesClient(kubeconfig=str(user)), name="flettner")


@pytest.mark.any_cluster
async def test_the_lease_names_its_holder_and_is_released(here: Namespace, tmp_path: Path) -> None:
    lock = await lock_of(here)

    for transitions in range(2):
        async with lock.hold(tmp_path, utc_now):
            spec = (await here.get("leases", "flettner"))["spec"]
            assert spec["holderIdentity"].endswith(str(tmp_path))
            assert spec["leaseTransitions"] == transitions
        assert (await here.get("leases", "flettner"))["spec"]["holderIdentity"] == ""


@pytest.mark.any_cluster
async def test_a_daemon_whose_lease_another_took_stops_to_act(here: Namespace, tmp_path: Path) -> None:
    lock = await lock_of(here)

    async def act() -> None:
        async with lock.hold(tmp_path, utc_now):
            await here.api.patch(here.path("leases", "flettner"), {"spec": {"holderIdentity": "thief"}})
            await asyncio.sleep(60)

    with pytest.raises(LockLostError, match="another daemon holds it: thief"):
        await act()


async def test_a_second_daemon_with_a_volume_of_its_own_waits_and_says_why(
    here: Namespace, tmp_path: Path
) -> None:
    await serve(here)
    async with site_of(here, tmp_path / "a").running() as first:
        second = site_of(here, tmp_path / "b")  # now, so that its ports are others
        try:
            await second.start()
            await second.says("another daemon holds it")
            assert (await here.get("leases", "flettner"))["spec"]["holderIdentity"].endswith("/a/s")
            assert "daemon.starting" not in second.log()
            await first.kill(signal.SIGTERM)
            await second.serving()
            assert (await here.get("leases", "flettner"))["spec"]["holderIdentity"].endswith("/b/s")
        finally:
            await second.tear_down()
