"""The shipped service with Docker: its unit uses the proxy's unit, which uses the Engine."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e.docker_rig import FLAGS, SOME, DockerRig, DockerSiteConfig
from tests.integration.systemd.machine import Machine
from tests.integration.systemd.service import Service
from tests.support.docker_images import Image
from tests.support.docker_site import Bench, RunningContainer
from tests.support.rig import lost

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ENGINE = Path(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")).resolve()


@dataclass(kw_only=True)
class DockerService(Service, DockerRig):
    """Containers of this host's Engine, changed by the service of a booted machine."""

    bare_metal: bool = False

    def log_of_the_proxy(self) -> str:
        return self.machine.run("journalctl", "-u", "flettner-docker-proxy", "-o", "cat", "--no-pager")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench() as bench:
        yield bench


@pytest.fixture
async def image(bench: Bench) -> AsyncIterator[Image]:
    """The host files of the simulator containers are below /srv: the proxy has a private /tmp."""
    image = await bench.simulator()
    with ExitStack() as after:
        srv = after.enter_context(TemporaryDirectory(dir="/srv", prefix="flettner-"))
        Path(srv).chmod(0o755)
        binds = [_seen_below(Path(srv), bind, after) for bind in image.binds]
        yield replace(image, binds=tuple(binds))


def _seen_below(srv: Path, bind: str, after: ExitStack) -> str:
    place, _, rest = bind.partition(":")
    if place == "/usr":
        return bind
    here = srv / place.strip("/").replace("/", "-")
    here.mkdir()
    subprocess.run(["mount", "--bind", place, here], check=True)
    after.callback(lambda: subprocess.run(["umount", "--lazy", here], check=True))
    return f"{here}:{rest}"


@pytest.fixture
async def blue(bench: Bench, image: Image) -> RunningContainer:
    fault = ("--sim-fault", "max_num_seqs=12:exit")
    return await bench.serving(*FLAGS, *fault, image=image, restart="unless-stopped")


@pytest.fixture
def read(image: Image) -> list[str]:
    """The host's directories that the containers read."""
    return [bind.partition(":")[0] for bind in image.binds]


@pytest.fixture
def docker_machine(package: Path, read: list[str]) -> Iterator[Machine]:
    """Give the docker group the group id of the Engine's socket."""
    with Machine(ENGINE, *(Path(place) for place in read if place != "/usr")) as machine:
        machine.install(package)
        machine.run("groupmod", "--non-unique", "--gid", str(ENGINE.stat().st_gid), "docker")
        yield machine


async def test_the_shipped_units_promote_a_change_and_roll_back_a_bad_one(
    bench: Bench,
    blue: RunningContainer,
    image: Image,
    read: list[str],
    docker_machine: Machine,
    tmp_path: Path,
) -> None:
    rig = DockerService(
        home=tmp_path,
        site_config=DockerSiteConfig(containers=(blue.name,)),
        bench=bench,
        blue=(blue,),
        machine=docker_machine,
    )
    rig.prepare()
    (docker_machine.root / "etc/flettner/docker-proxy.toml").write_text(f"""
        socket = {{ path = "/run/flettner-docker-proxy/docker.sock", engine = "{ENGINE}" }}
        containers = {{ adopt = ["{blue.name}"] }}
        create = {{ images = ["{image.tag}"] }}
        mounts = {{ read = {dumps(read)} }}
    """)
    docker_machine.run("systemctl", "start", "flettner")
    try:
        await rig.serving()
        async with rig.observer() as answers, rig.users(SOME) as traffic:
            rollout = await rig.switch(max_num_seqs=16)
            bad = await rig.switch(max_num_seqs=12)
            servers = await rig.consistent_servers()
        log = rig.log_of_the_proxy()
    finally:
        await rig.tear_down()

    assert (rollout["outcome"], bad["outcome"]) == ("promoted", "rolled_back"), (rollout, bad)
    assert "exited with code 1" in bad["why"]
    assert servers == ["chat-r1"]
    assert lost(traffic) == []
    assert set(answers) == {"200"}
    assert "containers/create" in log
    assert "refused" not in log
