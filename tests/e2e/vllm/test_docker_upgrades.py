"""Images of real vLLM are upgraded and taken back under load, with adapters that were loaded at run time."""

from dataclasses import dataclass
from json import dumps
from pathlib import Path

import pytest

from tests.e2e.docker_rig import DockerRig, DockerSiteConfig
from tests.support.docker_site import Bench
from tests.support.real_upgrades import (
    ADAPTERS,
    LORA,
    START_S,
    UpgradedSite,
    load_adapters,
    play_upgrades,
    write_adapter,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]


@dataclass(frozen=True, kw_only=True)
class Images(UpgradedSite, DockerSiteConfig):
    """The site of a container, which may be upgraded to some images."""

    strategy: str = "surge"  # vLLM maps more memory than it needs
    health_timeout_s: float = 30.0


async def test_images_are_upgraded_and_taken_back_without_a_lost_request(
    tmp_path: Path, bench: Bench
) -> None:
    old, new = await bench.real("0.31.0"), await bench.real()
    adapters = [write_adapter(tmp_path / name) for name in ADAPTERS]
    mounts = [*new.binds, *(f"{adapter.path}:{adapter.path}:ro" for adapter in adapters)]
    others = [mount for mount in mounts if mount not in old.binds]
    env = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    blue = await bench.run(*LORA, image=old, binds=others, env=env)
    await bench.healthy(blue, START_S)
    site_config = Images(containers=(blue.name,), upgrades=f"images = {dumps([old.tag, new.tag])}")
    rig = DockerRig(
        home=tmp_path / "site",
        site_config=site_config,
        role="admin",
        patience_s=2 * START_S,
        bench=bench,
        blue=[blue],
    )

    async def kill(server: str) -> None:
        container = await rig.container(server)
        await bench.engine(lambda api: api.kill(container["Id"]))

    try:
        await rig.begin()
        await load_adapters(rig, *adapters)
        promoted = [{"image": new.tag}, {"image": old.tag}]
        await play_upgrades(rig, promoted=promoted, ended={"image": new.tag}, kill=kill)
        await rig.consistent_servers()
    finally:
        await rig.tear_down()
