"""Upgrades of a real site in real time: one release after the other, under load, with an adapter in use."""

import re
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from json import dumps
from pathlib import Path
from tempfile import mkdtemp

import aiohttp
import docker

from bench.upgrades.releases import Release
from bench.upgrades.report import Upgrade
from flettner.simulator.release import RELEASE
from flettner.simulator.traffic import Load, TrafficGenerator
from tests.support.api_tokens import store_roles
from tests.support.config_builder import SERVERS, SiteConfig
from tests.support.docker_images import simulator_image
from tests.support.docker_site import Bench
from tests.support.rig import SHAPE, Document, Rig, at_rest, until

RATE, ADAPTER_RATE = 15.0, 1.0  # requests per second
ADAPTER = "sql"
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
    async with _running(rig):
        yield Site(rig=rig, to=lambda release: {"command": f"{folder}/{slug(release)}/bin/vllm"}, folder=home)


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
        async with _running(rig):
            yield Site(rig=rig, to=lambda release: {"image": tags[release.name]}, folder=home)


@asynccontextmanager
async def _running(rig: Rig) -> AsyncIterator[None]:
    rig.patience_s = PATIENCE_S
    rig.prepare()
    try:
        await rig.start()
        await until(rig.target, at_rest, "the first server", PATIENCE_S)
        await rig.serving()
        yield
    finally:
        await rig.tear_down()


SITES: Mapping[str, Callable[..., object]] = {"process": process_site, "docker": docker_site}
"""By engine."""


def slug(release: Release) -> str:
    return re.sub(r"\W+", "-", release.name).strip("-").lower()


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


async def upgrade_in_turn(engine: str, releases: Sequence[Release], rounds: int) -> AsyncIterator[Upgrade]:
    """Upgrade one site to each release, `rounds` times. The good ones take turns, so that each is another."""
    home = Path(mkdtemp(prefix="u-"))
    async with AsyncExitStack() as stack:
        site: Site = await stack.enter_async_context(SITES[engine](home, releases))  # type: ignore[arg-type]
        server = (await site.rig.target())["servers"][0]
        await load_adapter(site, server)
        clients = await stack.enter_async_context(site.rig.clients(rate=RATE))
        adapters = TrafficGenerator(
            site.rig.url, ADAPTER, Load(rate=ADAPTER_RATE), shape=SHAPE, seed=2, timeout_s=40.0
        )
        await adapters.start()
        stack.push_async_callback(adapters.stop)
        for seed in range(rounds):
            for release in releases:
                yield await upgrade(site, release, seed, engine, (clients, adapters))


async def load_adapter(site: Site, server: Document) -> None:
    """Load it as an operator does: at the server itself, while it runs."""
    folder = site.folder / ADAPTER
    folder.mkdir()
    body = {"lora_name": ADAPTER, "lora_path": str(folder)}
    url = f"http://{server['address']}/v1/load_lora_adapter"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        assert answer.status == 200, await answer.text()  # noqa: PLR2004 - HTTP

    def has_it(target: Document) -> bool:
        return bool(target) and all(ADAPTER in each["adapters"] for each in target["servers"])

    await until(site.rig.target, has_it, "the adapter")


async def upgrade(
    site: Site, release: Release, seed: int, engine: str, traffic: Sequence[TrafficGenerator]
) -> Upgrade:
    """Propose it, approve it, wait for its end, and count what clients lost meanwhile."""
    rig, tallies = site.rig, [each.tally for each in traffic]
    before = [len(tally.records) for tally in tallies]
    made = await rig.propose(**site.to(release))
    assert made["status"] == "open", made
    status, answer = await rig.approve(made)
    assert status == 200, answer  # noqa: PLR2004 - HTTP
    rollout = await rig.ended(str(made["id"]))
    exposed = rollout["exposed"]
    ended = [record for tally, begun in zip(tallies, before, strict=True) for record in tally.records[begun:]]
    failed = sum(record.outcome != "ok" for record in ended)
    return Upgrade(
        release=release.name,
        engine=engine,
        seed=seed,
        rate=RATE + ADAPTER_RATE,
        outcome=rollout["outcome"],
        why=rollout["why"],
        right=release.is_right(rollout["outcome"], rollout["why"]),
        weight=STEPS[min(rollout["step"], len(STEPS) - 1)][0],
        exposed=exposed["asked"],
        bad=rollout["bad_exposed"],
        lost=max(0, failed - rollout["bad_exposed"]) if release.answers_badly else failed,
        sent=len(ended),
        minutes=round(_minutes(rollout), 2),
    )


def _minutes(rollout: Document) -> float:
    began, ended = (datetime.fromisoformat(rollout[key]) for key in ("started_at", "ended_at"))
    return (ended - began).total_seconds() / 60
