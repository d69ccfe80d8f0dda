"""The access log of a gateway, sent by a real Envoy: which requests count, and of which server."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from flettner.actuators.envoy.process import find_binary
from flettner.agent.domain.model import Server
from flettner.sensors.proxy_requests.plugin import ProxyRequests
from tests.integration.envoy.test_proxy_requests import SensorOutput, listening
from tests.support.gateway.envoy_config import bootstrap, cluster, route_table
from tests.support.kubernetes.api import Json
from tests.support.ports import free_port
from tests.support.sse_backend import Backend, ask, until

NAMESPACE = "chat"
KUBECONFIG = Path(__file__).parents[2] / "simulation" / "kubernetes" / "kubeconfig.json"


@dataclass
class Fleet(SensorOutput):
    up: list[Server] = field(default_factory=list)

    def servers(self) -> Sequence[Server]:
        return tuple(self.up)


@dataclass
class Gate:
    """A real Envoy with the routes that a gateway would have given it."""

    home: Path
    listen: str
    records: str

    def program(self, addresses: dict[str, list[tuple[str, int]]], *routes: Json) -> None:
        """`addresses`: by the name of a Service."""
        for kind, resources in (
            ("cds", [cluster((name, 80), endpoints) for name, endpoints in addresses.items()]),
            ("rds", [route_table(routes)]),
        ):
            beside = self.home / f".{kind}.json"
            beside.write_text(json.dumps({"version_info": "1", "resources": resources}))
            beside.rename(self.home / f"{kind}.json")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        host, _, port = self.listen.partition(":")
        file = self.home / "bootstrap.json"
        file.write_text(json.dumps(bootstrap(str(self.home), host, int(port), self.records)))
        binary = find_binary("")
        assert binary is not None
        flags = ("--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
        with (self.home / "envoy.log").open("wb") as log:
            envoy = subprocess.Popen([binary, "-c", str(file), *flags], stdout=log, stderr=log)
        try:
            await until(self._answers)
            yield
        finally:
            envoy.kill()
            envoy.wait()

    async def receiver(self) -> None:
        """Wait until the sensor listens: Envoy keeps no record that it cannot send."""
        await until(lambda: self._answers(self.records))

    async def _answers(self, address: str = "") -> bool:
        host, _, port = (address or self.listen).partition(":")
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return False
        writer.close()
        return True


async def _all_at(total: int, *backends: Backend) -> bool:
    return sum(sum(backend.served.values()) for backend in backends) >= total


def http_route(name: str, prefix: str, **weights: int) -> Json:
    backends = [{"name": server, "port": 80, "weight": weight} for server, weight in weights.items()]
    rule = {"matches": [{"path": {"value": prefix}}], "backendRefs": backends}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"rules": [rule]}}


@pytest.fixture
async def blue() -> AsyncIterator[Backend]:
    async with Backend("blue") as backend:
        yield backend


@pytest.fixture
async def green() -> AsyncIterator[Backend]:
    async with Backend("green") as backend:
        yield backend


@pytest.fixture
def fleet(tmp_path: Path, blue: Backend, green: Backend) -> Fleet:
    return Fleet(state_dir=tmp_path / "chat", up=[blue.server, green.server])


@pytest.fixture
async def gate(tmp_path: Path, blue: Backend, green: Backend) -> AsyncIterator[Gate]:
    """Three HTTPRoutes: of the target, of a second rule to blue, and to a Service without pods."""
    home = tmp_path / "gate"
    home.mkdir()
    gateway = Gate(home, f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    places = {"blue": [("127.0.0.1", blue.port)], "green": [("127.0.0.1", green.port)], "none": []}
    gateway.program(
        places,
        http_route("chat", "/v1", blue=50, green=50),
        http_route("other", "/v1/other", blue=1),
        http_route("empty", "/v1/empty", none=1),
    )
    async with gateway.running():
        yield gateway


def sensor(gate: Gate, **options: str) -> ProxyRequests:
    return ProxyRequests(
        every_s=0.1,
        listen=gate.records,
        namespace=NAMESPACE,
        kubeconfig=str(KUBECONFIG),
        **{"route": "chat", **options},  # type: ignore[arg-type]
    )


async def test_each_request_counts_at_the_server_that_had_it(
    gate: Gate, fleet: Fleet, client: aiohttp.ClientSession, blue: Backend, green: Backend
) -> None:
    async with listening(sensor(gate), fleet):
        await gate.receiver()
        answers = await asyncio.gather(*(ask(client, gate.listen) for _ in range(40)))
        await fleet.until_counted(40)

    assert all(answer.good for answer in answers)
    served = {name: sum(request.server == name for request in fleet.requests) for name in ("blue", "green")}
    assert served == {"blue": blue.served["ok"], "green": green.served["ok"]}
    assert {request.outcome for request in fleet.requests} == {"ok"}
    assert all(0 < (request.ttft_s or 0) <= request.duration_s + 0.001 for request in fleet.requests)
    assert fleet.states == [("proxy_requests", True)]


@pytest.mark.parametrize(
    ("mode", "outcome"),
    [("500", "failed"), ("reset", "failed"), ("400", "refused"), ("cut", "truncated")],
)
async def test_what_a_server_fails_at_is_its_own(
    gate: Gate,
    fleet: Fleet,
    client: aiohttp.ClientSession,
    blue: Backend,
    green: Backend,
    mode: str,
    outcome: str,
) -> None:
    blue.mode = green.mode = mode  # type: ignore[assignment]
    async with listening(sensor(gate), fleet):
        await gate.receiver()
        await asyncio.gather(*(ask(client, gate.listen) for _ in range(10)))
        await fleet.until_counted(10)

    assert {request.outcome for request in fleet.requests} == {outcome}
    assert {request.server for request in fleet.requests} <= {"blue", "green"}


async def test_a_client_that_leaves_is_seen(
    gate: Gate, fleet: Fleet, client: aiohttp.ClientSession, blue: Backend, green: Backend
) -> None:
    blue.mode = green.mode = "hang"
    async with listening(sensor(gate), fleet):
        await gate.receiver()
        asking = [asyncio.create_task(ask(client, gate.listen)) for _ in range(4)]
        await until(lambda: _all_at(4, blue, green))
        for task in asking:
            task.cancel()
        await fleet.until_counted(4)

    assert [request.outcome for request in fleet.requests] == ["gave_up"] * 4


async def test_a_pod_that_has_just_ended_keeps_its_requests_and_an_unknown_one_is_a_gap(
    gate: Gate, fleet: Fleet, client: aiohttp.ClientSession, blue: Backend
) -> None:
    async with listening(sensor(gate), fleet):
        await gate.receiver()
        await asyncio.gather(*(ask(client, gate.listen) for _ in range(10)))
        await fleet.until_counted(10)
        fleet.up = [blue.server]
        await asyncio.gather(*(ask(client, gate.listen) for _ in range(10)))
        await fleet.until_counted(20)
        states = list(fleet.states)
        nowhere = [("127.0.0.2", blue.port)]
        gate.program({"blue": nowhere}, http_route("chat", "/v1", blue=1))
        while fleet.states == states:
            await ask(client, gate.listen)
            await asyncio.sleep(0.2)

    assert fleet.states[: len(states) + 1] == [*states, ("proxy_requests", False)]
    assert {request.server for request in fleet.requests} == {"blue", "green"}


async def test_only_requests_of_the_own_route_and_path_count(
    gate: Gate, fleet: Fleet, client: aiohttp.ClientSession
) -> None:
    async with listening(sensor(gate, rule="0"), fleet):
        await gate.receiver()
        for path in ("/v1/other", "/v1/models", "/v1/empty"):
            async with client.get(f"http://{gate.listen}{path}") as answer:
                await answer.read()
        await ask(client, gate.listen)
        await fleet.until_counted(1)
        await asyncio.sleep(1.5)

    assert len(fleet.requests) == 1


async def test_a_rule_whose_backends_have_no_pods_is_a_gap(
    gate: Gate, fleet: Fleet, client: aiohttp.ClientSession
) -> None:
    async with listening(sensor(gate, route="empty"), fleet):
        await gate.receiver()
        async with client.post(f"http://{gate.listen}/v1/empty") as answer:
            assert answer.status == 503
        await fleet.until_last_states(("proxy_requests", False), ("proxy_requests", True))

    assert fleet.requests == []


async def test_a_second_daemon_does_not_take_a_part_of_the_records(gate: Gate, tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from flettner.sensors.proxy_requests.otlp_receiver import subscribed_to_otlp\n"
        "async def listen():\n"
        "    async with subscribed_to_otlp(sys.argv[1], 'chat', None): pass\n"
        "asyncio.run(listen())\n"
    )
    fleet = Fleet(state_dir=tmp_path / "chat")
    async with listening(sensor(gate), fleet):
        await gate.receiver()
        second = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, gate.records, stderr=asyncio.subprocess.PIPE
        )
        _, output = await second.communicate()

    assert second.returncode == 1
    assert b"OSError" in output


async def test_two_targets_share_the_address(
    gate: Gate, fleet: Fleet, client: aiohttp.ClientSession, blue: Backend, tmp_path: Path
) -> None:
    other = Fleet(state_dir=tmp_path / "other", target="other", up=[blue.server])
    async with listening(sensor(gate), fleet), listening(sensor(gate, route="other"), other):
        await gate.receiver()
        await ask(client, gate.listen)
        async with client.post(f"http://{gate.listen}/v1/other/completions") as answer:
            await answer.read()
        await fleet.until_counted(1)
        await other.until_counted(1)

    assert len(fleet.requests) == len(other.requests) == 1
    assert [request.server for request in other.requests] == ["blue"]
