"""No request costs Envoy more than its bytes are worth, and no client waits for another's hostile ones."""

import asyncio
import json
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.envoy.resources import LONGEST_PATH
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.primitives.address import Address
from flettner.primitives.quantiles import quantile
from tests.integration.envoy.steps import alone
from tests.support.hostile_client import BODIES, HEADERS, HTTP2, KINDS, PATHS, Build, send
from tests.support.sse_backend import Backend, ask

REQUESTS = 30  # for one figure: a single one takes less than the kernel's clock resolves
GROWTH = 3.0  # of CPU by a doubled size: linear code has at most 2, quadratic code 4
TRIES = 5  # the machine may do something else meanwhile
SLOWDOWN = 3.0  # of the 99th percentile of a good client


def cpu_s(traffic: EnvoyTraffic) -> float:
    """CPU time of all threads of Envoy, in nanoseconds' resolution."""
    pid = traffic._process.pid()
    assert pid is not None
    spent = (path.read_text().split()[0] for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(map(int, spent)) / 1e9


async def cost_s(traffic: EnvoyTraffic, request: bytes) -> float:
    """Envoy's CPU for `REQUESTS` of them."""
    address = Address.parse(traffic.listen)
    before = cpu_s(traffic)
    await asyncio.gather(*(send(address.host, address.port, request) for _ in range(REQUESTS)))
    return cpu_s(traffic) - before


@pytest.mark.parametrize(
    ("build", "size"),
    [
        *(pytest.param(build, 1900, id=name) for name, build in PATHS.items()),
        *(pytest.param(build, 12_000, id=name) for name, build in HEADERS.items()),
        *(pytest.param(build, 200_000, id=name) for name, build in BODIES.items()),
        *(pytest.param(build, 8_000, id=name) for name, build in HTTP2.items()),
    ],
)
async def test_the_cpu_of_a_request_grows_no_faster_than_its_size(
    traffic: EnvoyTraffic, blue: Backend, build: Build, size: int
) -> None:
    blue.mode = "400"
    await traffic.route(alone(blue, 1))
    await cost_s(traffic, build(size))

    growth = []
    for _ in range(TRIES):
        growth.append(await cost_s(traffic, build(2 * size)) / await cost_s(traffic, build(size)))
        if growth[-1] <= GROWTH:
            return
    pytest.fail(f"twice the size costs {min(growth):.1f} times the CPU")


@pytest.mark.smoke
@pytest.mark.parametrize(("length", "status"), [(LONGEST_PATH, "200"), (LONGEST_PATH + 1, "414")])
async def test_a_path_has_a_longest_length(
    traffic: EnvoyTraffic, blue: Backend, length: int, status: str
) -> None:
    await traffic.route(alone(blue, 1))
    address = Address.parse(traffic.listen)
    request = f"GET /{'a' * (length - 1)} HTTP/1.1\r\nHost: model\r\nConnection: close\r\n\r\n"

    assert await send(address.host, address.port, request.encode()) == status


async def p99_s(client: aiohttp.ClientSession, traffic: EnvoyTraffic, attack: asyncio.Task[object]) -> float:
    """Of a good client's requests, one after the other until the attack is over."""
    took: list[float] = []
    while not attack.done() or not took:
        began = time.perf_counter()
        answer = await ask(client, traffic.listen, stream=False)
        took.append(time.perf_counter() - began)
        assert answer.good
    return quantile(took, 0.99)


async def attacked(traffic: EnvoyTraffic, requests: int, kinds: str) -> dict[str, dict[str, int]]:
    """The endings of each kind, from a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.hostile_client", traffic.listen, str(requests), kinds),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return dict(json.loads(output))


@pytest.mark.parametrize(
    "requests", [pytest.param(600, marks=pytest.mark.smoke), pytest.param(10_000, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(900)
async def test_a_good_client_is_served_as_fast_beside_hostile_ones(
    traffic: EnvoyTraffic, blue: Backend, client: aiohttp.ClientSession, requests: int
) -> None:
    """Its quiet value has as many ordinary requests beside it: the machine's cores are shared by all."""
    await traffic.route(alone(blue, 1))
    slowdowns = []
    for _ in range(TRIES):
        ordinary = asyncio.create_task(attacked(traffic, requests, "ordinary"))
        quiet_s = await p99_s(client, traffic, ordinary)
        hostile = asyncio.create_task(attacked(traffic, requests, "hostile"))
        slowdowns.append(await p99_s(client, traffic, hostile) / quiet_s)
        endings = await hostile
        assert set(endings) == set(KINDS)
        if slowdowns[-1] <= SLOWDOWN:
            return
    pytest.fail(f"the 99th percentile is {min(slowdowns):.1f} times the quiet one")
