"""The sites of the real upgrades: a daemon, Envoy, and a first server of OLD, by engine."""

import re
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from json import dumps
from pathlib import Path

import docker

from bench.upgrades.releases import VERSION, Release
from flettner.simulator.release import RELEASE
from tests.support.api_tokens import store_roles
from tests.support.config_builder import SERVERS, SiteConfig
from tests.support.docker_images import simulator_image
from tests.support.docker_site import Bench
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.manifests import PORT, container, deployment
from tests.support.kubernetes.namespace import Namespace
from tests.support.kubernetes.site import KubernetesSite, KubernetesSiteConfig
from tests.support.rig import Rig, at_rest, until

FLAGS = (
    "--sim-start-s",
    "0.5",
    "--sim-speed",
    "3",
    "--max-num-seqs",
    "64",
    "--num-gpu-blocks-override",
    "1200",
)
STEPS = ((25, 20, 3.0), (50, 100, 10.0))
AT_MOST_S, HOLD_S, START_S = 600.0, 30.0, 60.0
LORA = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
PATIENCE_S = 1200.0  # for the end of a rollout
REGISTRY = "localhost:1"
OLD = Release(name="old", right="promoted")

_VLLM = """#!/bin/sh
export {variable}={release}
shift # "serve"
exec {python} -m flettner.simulator.server "$@"
"""
_PYTHON = """#!/bin/sh
echo {version}
"""


@dataclass(frozen=True, kw_only=True)
class UpgradableSite(SiteConfig):
    """`engine_lines` and `upgrades`: the lines of the tables `[targets.engine]` and `[targets.upgrades]`."""

    engine_lines: str
    upgrades: str
    steps: tuple[tuple[int, int, float], ...] = STEPS
    at_most_s: float = AT_MOST_S
    hold_s: float = HOLD_S
    start_s: float = START_S
    margin: float = 0.01
    ttft: str = "1s"

    def text(self, *, api: int, listen: int) -> str:
        return f"""{super().text(api=api, listen=listen)}
            [targets.upgrades]
            {self.upgrades}
        """

    def engine(self) -> str:
        return f"{self.engine_lines}\nstop_s = 5.0"


class AdminRig(Rig):
    """Only an admin proposes upgrades."""

    def prepare(self) -> None:
        super().prepare()
        self.token = store_roles(self.home / "tokens")["admin"]


class ClusterRig(AdminRig, KubernetesSite):
    """The daemon has the rights of the chart."""


class ContainerRig(AdminRig):
    """The bench removes the containers."""

    async def tear_down(self) -> None:
        if self.daemon is not None and self.daemon.returncode is None:
            await self.kill()
        await self.envoy.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """`to`: the change that upgrades to a release. The first server runs OLD."""

    rig: Rig
    to: Callable[[Release], Mapping[str, object]]
    folder: Path  # of adapters
    address: str  # of the first server


@asynccontextmanager
async def process_site(home: Path, releases: Sequence[Release]) -> AsyncIterator[Site]:
    folder = home / "environments"
    for release in (OLD, *releases):
        _install(folder / slug(release), release)
    command = [f"{folder}/{slug(OLD)}/bin/vllm", "serve", "--model", "tiny", "--host", "127.0.0.1", *FLAGS]
    engine = f"""
        kind = "process"
        command = {dumps(command)}
        env = {{ {LORA} = "True" }}
        ports = [{SERVERS[0]}, {SERVERS[-1]}]
    """
    upgrades = f'commands = ["{folder}/*/bin/vllm"]'
    rig = AdminRig(home=home, site_config=UpgradableSite(engine_lines=engine, upgrades=upgrades))
    async with _running(rig) as address:
        yield Site(
            rig=rig,
            to=lambda release: {"command": f"{folder}/{slug(release)}/bin/vllm"},
            folder=home,
            address=address,
        )


@asynccontextmanager
async def docker_site(home: Path, releases: Sequence[Release]) -> AsyncIterator[Site]:
    async with Bench() as bench:
        tags = {
            release.name: await bench.engine(partial(_build, release=release)) for release in (OLD, *releases)
        }
        image = replace(await bench.simulator(), tag=tags[OLD.name])
        blue = await bench.serving(*FLAGS, image=image, env={LORA: "True"}, binds=[f"{home}:{home}"])
        engine = f'kind = "docker"\ncontainers = ["{blue.name}"]'
        upgrades = 'images = ["flettner-test/release:*"]'
        rig = ContainerRig(home=home, site_config=UpgradableSite(engine_lines=engine, upgrades=upgrades))
        async with _running(rig) as address:
            yield Site(
                rig=rig, to=lambda release: {"image": tags[release.name]}, folder=home, address=address
            )


@asynccontextmanager
async def kubernetes_site(home: Path, releases: Sequence[Release]) -> AsyncIterator[Site]:
    """An API server, a Deployment whose pods a stand-in node runs, and Envoy on this host."""
    with Cluster() as cluster:
        async with Namespace(cluster, gpus=2) as here:
            here.node.image_env = {_image(each): {RELEASE: each.text} for each in (OLD, *releases)}
            lora = {"name": LORA, "value": "True"}
            blue = container("tiny", *FLAGS, image=_image(OLD), gpus=1, env=[lora])
            await here.run(deployment("vllm", blue))
            [pod] = await here.list("pods")
            config = KubernetesSiteConfig(
                here=here,
                upgrades=f'images = ["{REGISTRY}/*/vllm-openai:*", "{REGISTRY}/*/vllm-openai:*@*"]',
                steps=STEPS,
                at_most_s=AT_MOST_S,
                hold_s=HOLD_S,
                start_s=START_S,
                margin=0.01,
                ttft="1s",
            )
            rig = ClusterRig(home=home, site_config=config, here=here)
            async with _running(rig):
                yield Site(
                    rig=rig,
                    to=lambda release: {"image": _image(release)},
                    folder=home,
                    address=f"{pod['status']['podIP']}:{PORT}",
                )


@asynccontextmanager
async def _running(rig: Rig) -> AsyncIterator[str]:
    """Yield the address of the first server."""
    rig.patience_s = PATIENCE_S
    rig.prepare()
    try:
        await rig.start()
        await until(rig.target, at_rest, "the first server", PATIENCE_S)
        yield str((await rig.serving())["servers"][0]["address"])
    finally:
        await rig.tear_down()


SITES: Mapping[str, Callable[[Path, Sequence[Release]], AbstractAsyncContextManager[Site]]] = {
    "process": process_site,
    "docker": docker_site,
    "kubernetes": kubernetes_site,
}
"""By engine."""


def slug(release: Release) -> str:
    return re.sub(r"\W+", "-", release.name).strip("-").lower()


def _image(release: Release) -> str:
    """Of a registry that does not answer: the tag is not pinned. All nodes have it, and vLLM by its name."""
    return f"{REGISTRY}/{slug(release)}/vllm-openai:v{VERSION}"


def _install(folder: Path, release: Release) -> None:
    """Install the simulator as the vllm of an environment of its own."""
    texts = {
        "vllm": _VLLM.format(variable=RELEASE, release=shlex.quote(release.text), python=sys.executable),
        "python": _PYTHON.format(version=release.text.split()[0].partition("=")[2]),
    }
    (folder / "bin").mkdir(parents=True)
    for name, text in texts.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)


def _build(api: docker.APIClient, release: Release) -> str:
    """Return the tag of an image like the simulator's that says its release."""
    made = api.create_container(simulator_image(api).tag, command=["none"])
    change = f"ENV {RELEASE}={dumps(release.text)}"
    api.commit(made["Id"], repository="flettner-test/release", tag=slug(release), changes=[change])
    api.remove_container(made["Id"])
    return f"flettner-test/release:{slug(release)}"
