"""Upgrades of real vLLM under load: the site of a tiny model, its clients, and two adapters."""

import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from flettner.agent.domain.model import Adapter
from flettner.simulator.tally import RequestRecord
from flettner.simulator.traffic import Load, TrafficGenerator
from flettner.simulator.workload import Shape, lengths
from tests.support.config_builder import SiteConfig
from tests.support.rig import Document, Rig, until

SHAPE = Shape(prompt=lengths("uniform:8:64"), output=lengths("uniform:8:24"))
RATES = {"tiny": 1.5, "sql": 0.7, "legal": 0.02}  # requests/s; more would leave two starting servers no CPU
OPEN = 4  # requests that a server has at a time, at most
ADAPTERS = ("sql", "legal")
LORA = ("--max-num-seqs", "8", "--enable-lora", "--max-lora-rank", "8", "--max-loras", "2")
START_S = 900.0  # a start needs a minute of CPU time, of a machine that is busy
RANK, HIDDEN = 4, 256  # the tiny model's


@dataclass(frozen=True, kw_only=True)
class UpgradedSite(SiteConfig):
    """A site of a tiny model, with the patience of real vLLM. `upgrades`: the table of them, as TOML."""

    upgrades: str
    steps: tuple[tuple[int, int, float], ...] = ((25, 10, 5.0), (50, 30, 10.0))
    at_most_s: float = 900.0
    hold_s: float = 10.0
    start_s: float = START_S
    warm_up_s: float = 300.0
    drain_s: float = 120.0
    stalled_after_s: float = 120.0
    ttft: str = "10s"

    def text(self, *, api: int, listen: int) -> str:
        promised = '[targets.slo]\nitl = { under = "5s", share = 0.9 }'  # two releases share two cores
        text = super().text(api=api, listen=listen).replace("[targets.slo]", promised)
        return f"{text}\n[targets.upgrades]\n{self.upgrades}\n"


def write_adapter(folder: Path) -> Adapter:
    """A LoRA of the first layer's queries, in the format of safetensors: header, then the numbers."""
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["q_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    layer, header, data = "base_model.model.model.layers.0.self_attn.q_proj", {}, b""
    for side, shape in (("lora_A", (RANK, HIDDEN)), ("lora_B", (HIDDEN, RANK))):
        numbers = struct.pack(f"<{RANK * HIDDEN}f", *([0.01] * RANK * HIDDEN))
        offsets = [len(data), len(data) + len(numbers)]
        header[f"{layer}.{side}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        data += numbers
    head = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    return Adapter(name=folder.name, path=str(folder))


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
    for adapter in adapters:
        await rig.load_adapter(server["address"], adapter.name, Path(adapter.path))


async def statuses(rig: Rig) -> dict[str, int]:
    """The status of a request for each model, through the proxy."""
    answers = {}
    async with aiohttp.ClientSession() as session:
        for model in RATES:
            body = {"model": model, "prompt": "a", "max_tokens": 2}
            async with session.post(f"{rig.url}/v1/completions", json=body) as answer:
                answers[model] = answer.status
    return answers


async def play_upgrades(
    rig: Rig,
    *,
    promoted: Sequence[Mapping[str, str]],
    ended: Mapping[str, str],
    kill: Callable[[str], Awaitable[None]],
) -> None:
    """Promote upgrades under load, abort one, and `kill` green in another: only what it had open is lost."""
    served = dict.fromkeys(RATES, 200)
    async with clients(rig) as traffic:
        for upgrade in promoted:
            rollout = await rig.switch(**upgrade)
            assert rollout["outcome"] == "promoted", rollout["why"]
            assert await statuses(rig) == served
        change = await rig.change(**ended)
        rollout = await until(rig.rollout, in_canary(change), "a canary", rig.patience_s)
        await rig.ask("POST", f"/v1/rollouts/{rollout['id']}/abort", {"reason": "enough"})
        assert (await rig.ended(change))["outcome"] == "rolled_back"
        assert await statuses(rig) == served
        assert lost(traffic) == []

        change = await rig.change(**ended)
        await until(rig.rollout, in_canary(change), "a canary", rig.patience_s)
        await kill((await rig.target())["servers"][-1]["name"])
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
