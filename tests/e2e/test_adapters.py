"""Adapters that clients load at run time are served through a promotion, a rollback and a restart."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from flettner.simulator.traffic import Load, TrafficGenerator
from tests.e2e.conftest import Start
from tests.support.config_builder import SiteConfig
from tests.support.rig import SHAPE, Document, Rig, lost, until

NAMES = ("sql", "legal")


@dataclass(frozen=True, kw_only=True)
class WithAdapters(SiteConfig):
    def engine(self) -> str:
        return f"""{super().engine()}
            env = {{ VLLM_ALLOW_RUNTIME_LORA_UPDATING = "True" }}
        """


async def load_adapter(rig: Rig, server: str, name: str, folder: Path) -> None:
    document = await rig.target()
    (address,) = [shown["address"] for shown in document["servers"] if shown["name"] == server]
    await rig.load_adapter(address, name, folder)


def listed(target: Document, name: str) -> bool:
    """Whether all of the target's servers list the adapter, as far as the daemon knows."""
    return bool(target) and all(name in server["adapters"] for server in target["servers"])


async def test_no_request_for_an_adapter_is_refused_by_a_promotion_or_a_restart(
    site: Start, tmp_path: Path
) -> None:
    rig = await site(WithAdapters())
    await rig.serving()
    await load_adapter(rig, "chat-r1", "sql", tmp_path / "sql")
    clients = TrafficGenerator(rig.url, "sql", Load(rate=3.0), shape=SHAPE, seed=2, timeout_s=40.0)
    await clients.start()
    try:
        async with rig.clients(rate=5.0):
            rollout = await rig.switch(max_num_seqs=16)
    finally:
        await clients.stop()

    assert rollout["outcome"] == "promoted", rollout
    assert lost(clients) == []
    os.kill(rig.pid("chat-r2"), signal.SIGKILL)
    await until(rig.target, lambda target: target["servers"][-1]["name"] == "chat-r3", "another server")
    await rig.serving()
    assert await served(rig, "sql") == 200


async def test_an_adapter_loaded_in_the_canary_is_served_by_both(site: Start, tmp_path: Path) -> None:
    rig = await site(WithAdapters(steps=((50, 1000, 50.0),)))
    await rig.serving()
    async with rig.clients(rate=5.0):
        await rig.change(max_num_seqs=16)
        await rig.in_phase("canary")
        for server, name in (("chat-r1", "sql"), ("chat-r2", "legal")):
            await load_adapter(rig, server, name, tmp_path / name)
        answers = [await served(rig, name) for name in NAMES for _ in range(10)]

    assert answers == [200] * len(answers), "half of the requests go to either server"


async def test_a_green_that_cannot_load_an_adapter_gets_no_request(site: Start, tmp_path: Path) -> None:
    rig = await site(WithAdapters())
    await rig.serving()
    await load_adapter(rig, "chat-r1", "sql", tmp_path / "sql")
    (tmp_path / "sql").rmdir()
    async with rig.clients(rate=5.0) as traffic:
        rollout = await rig.switch(max_num_seqs=16)

    assert (rollout["outcome"], rollout["exposed"]["total"]) == ("rolled_back", 0)
    assert "does not load the adapter sql" in rollout["why"]
    assert lost(traffic) == []
    assert await served(rig, "sql") == 200


async def served(rig: Rig, model: str) -> int:
    """The status of a request for this model, through the proxy."""
    body = {"model": model, "prompt": "a", "max_tokens": 2}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{rig.url}/v1/completions", json=body) as answer,
    ):
        return answer.status
