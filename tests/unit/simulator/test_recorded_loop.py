"""Two servers on one simulated H100 slow each other as they did on the real one."""

import gzip
import json
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median
from typing import Any

import pytest

from flettner.performance_model.outside import OUTSIDE
from flettner.simulator.card import STARTING, Card
from flettner.simulator.flags import parse
from flettner.simulator.scheduler import SimulatedRequest
from tests.support.virtual_server import VirtualServer
from tests.unit.performance_model.recorded_gpu import DATA

SLICE_S = 0.02
ENDS_S = 240.0
AT_ONCE_S = 3.0  # a TTFT of green; the requests in blue's queue waited for a minute when green began
PHASES = {
    "alone": ("blue", 0.0, 87.0),
    "while green starts": ("blue", 87.0, 131.0),
    "beside green with a share": ("blue", 133.0, 179.0),
    "green with a share": ("green", 133.0, 179.0),
    "while it drains": ("blue", 179.0, 232.0),
    "green while blue drains": ("green", 179.0, 232.0),
}


@dataclass(frozen=True, slots=True)
class Served:
    """Times in seconds since the begin of the load; `itl_s`: mean gap between tokens."""

    server: str
    first_s: float
    ended_s: float
    ttft_s: float
    itl_s: float
    tokens: int


@cache
def recording() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress((DATA / "h100-qwen3-8b-loop.json.gz").read_bytes()))
    return document


def server_of(at_s: float, ttft_s: float) -> str:
    return "green" if at_s >= recording()["healthy_s"] and ttft_s < AT_ONCE_S else "blue"


def recorded() -> list[Served]:
    return [
        Served(server_of(at_s, ttft_s), at_s + ttft_s, at_s + e2e_s, ttft_s, itl_s, tokens)
        for at_s, _, tokens, ttft_s, itl_s, e2e_s in recording()["requests"]
        if itl_s is not None
    ]


@cache
def simulated() -> list[Served]:
    """Send each request when it came, to the server that answered it."""
    card = Card()
    servers = {"blue": server("blue", 0.0, card)}
    begins_s, healthy_s = recording()["launched_s"], recording()["healthy_s"]
    coming, asked = list(recording()["requests"]), []
    for at_s in (SLICE_S * number for number in range(1, int(ENDS_S / SLICE_S))):
        if "green" not in servers and at_s >= (begins_s + healthy_s) / 2:
            card.take("green", STARTING)
        if "green" not in servers and at_s >= healthy_s:
            servers["green"] = server("green", at_s, card)
        while coming and coming[0][0] < at_s:
            arrived_s, prompt, tokens, ttft_s, _, _ = coming.pop(0)
            name = server_of(arrived_s, ttft_s)
            asked.append(
                (name, SimulatedRequest(name="", prompt=prompt, wanted=tokens, arrived_at=arrived_s))
            )
            servers[name].ask(asked[-1][1])
        for running in servers.values():
            running.advance(at_s)
    return [
        Served(
            name,
            request.first_at,
            request.last_at,
            request.first_at - request.arrived_at + OUTSIDE.value,
            (request.last_at - request.first_at) / (request.wanted - 1),
            request.wanted,
        )
        for name, request in asked
        if request.ended and request.first_at is not None and request.last_at is not None
    ]


def server(name: str, now_s: float, card: Card) -> VirtualServer:
    cap, part = recording()[name]["max_num_seqs"], recording()["gpu_memory_utilization"]
    flags = f"--model m --max-num-seqs {cap} --gpu-memory-utilization {part} --sim-hardware h100-qwen3-8b"
    return VirtualServer(
        name, parse([*flags.split(), "--sim-jitter", "0"]), now_s=now_s, unix_s=0.0, card=card
    )


@pytest.mark.parametrize(("name", "since_s", "until_s"), PHASES.values(), ids=PHASES)
def test_both_servers_are_as_fast_as_recorded(name: str, since_s: float, until_s: float) -> None:
    measured, computed = (
        [row for row in rows if row.server == name and since_s <= row.first_s and row.ended_s <= until_s]
        for rows in (recorded(), simulated())
    )

    assert fmean(row.itl_s for row in computed) == pytest.approx(
        fmean(row.itl_s for row in measured), rel=0.1
    )
    assert sum(row.tokens for row in computed) == pytest.approx(sum(row.tokens for row in measured), rel=0.1)
    assert median(row.ttft_s for row in computed) == pytest.approx(
        median(row.ttft_s for row in measured), rel=0.25
    )
