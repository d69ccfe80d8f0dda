"""A daemon that starts where something is missing."""

import asyncio
import shutil
from pathlib import Path

import pytest

from flettner.actuators.kubernetes.labels import EPOCH
from tests.support.kubernetes.engines import ROLE, serve
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.proxy_site import ProxySite, ProxySiteConfig
from tests.support.kubernetes.site import KubernetesSite, site_of
from tests.support.rig import PATIENCE_S

pytestmark = pytest.mark.timeout(240)


async def lose_volume(site: KubernetesSite) -> None:
    """Epoch 5 is left on the Service of the server."""
    await site.kill()
    site.envoy.end()
    shutil.rmtree(site.state_dir)
    [service] = [
        document
        for document in await site.here.list("services")
        if EPOCH in document["metadata"].get("labels", {})
    ]
    path = site.here.path("services", service["metadata"]["name"])
    await site.here.api.patch(path, {"metadata": {"labels": {EPOCH: "5"}}})


async def test_a_daemon_that_lost_volume_and_routes_names_it_and_goes_on_above_the_epoch_of_the_objects(
    here: Namespace, tmp_path: Path
) -> None:
    await serve(here)
    async with site_of(here, tmp_path).running() as site:
        await lose_volume(site)
        refused = await site.start()
        async with asyncio.timeout(PATIENCE_S):
            assert await refused.wait() == 2
        said = site.log()
        await site.start("--accept-new-journal")
        await site.serving()
        await site.change(max_num_seqs=16)

        assert "a daemon of epoch 5 has acted here" in said
        assert "--accept-new-journal" in said
        await site.in_phase("canary")


async def test_a_daemon_waits_for_an_api_server_that_is_away(here: Namespace, tmp_path: Path) -> None:
    await serve(here)
    site = site_of(here, tmp_path)
    await here.user("daemon", *ROLE)
    here.cluster.stop_api()
    try:
        await site.start()
        await site.says("the API server does not answer")
        here.cluster.start_api()
        await site.serving()
    finally:
        await site.tear_down()


async def test_a_daemon_asks_again_while_the_api_server_forbids_everything(
    here: Namespace, tmp_path: Path
) -> None:
    site = ProxySite(home=tmp_path, site_config=ProxySiteConfig(here=here), here=here, rules=())
    site.prepare()
    daemon = await site.start()
    try:
        await site.says("give flettner's Role this right")
        await here.api.patch(here.path("roles", "daemon"), {"rules": ROLE})
        async with asyncio.timeout(PATIENCE_S):
            assert await daemon.wait() == 2

        assert "there is no Deployment flettner-proxy of Envoys" in site.log()
    finally:
        await site.tear_down()
