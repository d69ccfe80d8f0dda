"""Container events become incidents of the right server; an unreachable Engine is reported once."""

import asyncio
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import docker
import pytest
from docker.errors import NotFound

from flettner.agent.domain.reading import Incident
from flettner.clients.docker.events import THREAD_NAME
from flettner.clients.docker.labels import SERVER, TARGET
from flettner.clients.docker.parse import ContainerEvent, ContainerSummary, event_of, summaries_of
from flettner.sensors.docker_events.plugin import DockerEvents
from flettner.sensors.docker_events.registry import HELD_S, ContainerRegistry
from tests.support.docker_socket import EngineSocket
from tests.unit.sensors.run_sensor import NOON, Fleet, ReceivedSamples, run_sensor

SOCKET = Path("/var/run/docker.sock")
HOST_PARTS = ("/usr", "/lib", "/lib64", "/bin")


# Which container is which server, and what an event means


def summary(**parts: object) -> ContainerSummary:
    """A container of the Engine's list that publishes 8000 as 127.0.0.1:8101."""
    network = {"IPAddress": "172.17.0.5", "EndpointID": "e1"}
    whole = {
        "Id": "c1",
        "Names": ["/other/link", "/vllm"],
        "Labels": {},
        "State": "running",
        "Status": "Up 5 minutes (healthy)",
        "Ports": [{"IP": "127.0.0.1", "PrivatePort": 8000, "PublicPort": 8101, "Type": "tcp"}],
        "NetworkSettings": {"Networks": {"bridge": network}},
    }
    (container,) = summaries_of(json.dumps([whole | parts]).encode())
    return container


def event(action: str, key: str = "c1", **attributes: str) -> ContainerEvent:
    return event_of(
        json.dumps(
            {"Type": "container", "Action": action, "Actor": {"ID": key, "Attributes": attributes}}
        ).encode()
    )


def network(action: str, key: str = "c1") -> ContainerEvent:
    attributes = {"container": key, "name": "lab"}
    return event_of(
        json.dumps(
            {"Type": "network", "Action": action, "Actor": {"ID": "n1", "Attributes": attributes}}
        ).encode()
    )


def roster_of(*summaries: ContainerSummary, address: str = "127.0.0.1:8101") -> ContainerRegistry:
    roster = ContainerRegistry(Fleet({"chat-r0": address}))
    assert roster.resync(summaries or (summary(),), NOON) == []
    return roster


def incidents(roster: ContainerRegistry, *events: ContainerEvent) -> list[tuple[str, str]]:
    received = [incident for seen in events for incident in roster.record(seen, NOON, 0.0)]
    return [(incident.what, incident.why) for incident in received]


@pytest.mark.parametrize(
    ("address", "ports", "belongs"),
    [
        ("127.0.0.1:8101", [("127.0.0.1", 8101)], True),
        ("127.0.0.1:8101", [("0.0.0.0", 8101)], True),  # noqa: S104
        ("[::1]:8101", [("::", 8101)], True),
        ("172.17.0.5:8000", [], True),
        ("127.0.0.1:8102", [("127.0.0.1", 8101)], False),
        ("127.0.0.1:8101", [("192.0.2.1", 8101)], False),
        ("172.17.0.6:8000", [], False),
    ],
)
def test_identifies_an_adopted_container_by_its_address(
    address: str, ports: list[tuple[str, int]], belongs: bool
) -> None:
    published = [{"IP": ip, "PrivatePort": 8000, "PublicPort": port} for ip, port in ports]
    roster = roster_of(summary(Ports=published), address=address)

    received = roster.record(event("oom"), NOON, 0.0)

    assert [(incident.server, incident.container) for incident in received] == (
        [("chat-r0", "vllm")] if belongs else []
    )


@pytest.mark.parametrize(
    ("labels", "server"),
    [
        ({"flettner.target": "chat", "flettner.server": "chat-r7"}, "chat-r7"),
        ({"flettner.target": "other", "flettner.server": "other-r7"}, None),
        ({"flettner.target": "chat", "flettner.server": "chat-r7", "flettner.site": "another"}, None),
        ({"flettner.target": "chat"}, None),
    ],
)
def test_identifies_a_launched_container_by_its_labels(labels: dict[str, str], server: str | None) -> None:
    roster = roster_of()

    received = roster.record(event("oom", "c2", name="green", **labels), NOON, 0.0)

    assert [incident.server for incident in received] == ([server] if server else [])


def test_identifies_a_container_by_its_name_without_a_unique_address() -> None:
    roster = ContainerRegistry(Fleet({"chat-r0": "127.0.0.1:8101"}), adopted=("vllm",))
    roster.resync([summary(Ports=[])], NOON)

    roster.record(event("rename", oldName="/vllm", name="mine"), NOON, 0.0)

    assert [incident.server for incident in roster.record(event("oom"), NOON, 0.0)] == ["vllm"]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([event("die", exitCode="1")], [("died", "exit code 1")]),
        (
            [event("kill", signal="9"), event("die", exitCode="137")],
            [("died", "exit code 137, after Docker sent signal 9")],
        ),
        (
            [event("oom"), event("die", exitCode="137")],
            [
                ("oom", "the kernel killed one of its processes: out of memory"),
                ("died", "exit code 137, after the kernel killed one of its processes: out of memory"),
            ],
        ),
        (
            [event("die", exitCode="3"), event("start"), event("die", exitCode="3"), event("start")],
            [
                ("died", "exit code 3"),
                ("restarted", "started again after exit code 3; seen 1 times"),
                ("died", "exit code 3"),
                ("restarted", "started again after exit code 3; seen 2 times"),
            ],
        ),
        (
            [event("pause"), event("unpause")],
            [("paused", "frozen by docker pause: no answers until docker unpause")],
        ),
        (
            [event("rename", oldName="/vllm", name="mine")],
            [("renamed", "vllm is now called mine")],
        ),
        (
            [event("health_status: unhealthy"), event("health_status: unhealthy")],
            [("unhealthy", "its own health check, which had passed before, fails")],
        ),
        (
            [event("exec_create: x"), event("unheard-of"), event("start"), event("kill", signal="1")],
            [],
        ),
    ],
    ids=lambda value: " ".join(part.action for part in value if isinstance(part, ContainerEvent)),
)
def test_reports_an_event_with_its_cause(events: list[ContainerEvent], said: list[tuple[str, str]]) -> None:
    assert incidents(roster_of(), *events) == said


def test_ignores_unhealthy_during_startup() -> None:
    roster = roster_of()
    unhealthy, healthy = event("health_status: unhealthy"), event("health_status: healthy")

    assert incidents(roster, event("die", exitCode="0"), event("start"), unhealthy)[2:] == []
    assert [what for what, _ in incidents(roster, healthy, unhealthy)] == ["unhealthy"]
    assert incidents(roster_of(summary(Status="Up 1 second (health: starting)")), unhealthy) == []


def test_reports_a_running_container_that_lost_its_network() -> None:
    roster = roster_of()
    assert incidents(roster, network("disconnect")) == []
    assert roster.confirm_held(NOON, 0.0) == []
    (incident,) = roster.confirm_held(NOON, HELD_S)
    assert (incident.what, incident.server) == ("disconnected", "chat-r0")
    assert roster.confirm_held(NOON, 2 * HELD_S) == []


@pytest.mark.parametrize(
    "events",
    [
        [event("die", exitCode="0"), network("disconnect")],
        [network("disconnect"), event("die", exitCode="0")],
        [network("disconnect"), network("connect")],
        [network("disconnect", "unknown")],
    ],
    ids=["after its end", "before its end", "for a moment", "another's"],
)
def test_ignores_a_short_network_loss_or_one_at_exit(events: list[ContainerEvent]) -> None:
    roster = roster_of()
    incidents(roster, *events)

    assert roster.confirm_held(NOON, 60.0) == []


@pytest.mark.parametrize(
    ("listing", "said"),
    [
        ([summary()], []),
        (
            [summary(State="exited", Status="Exited (137) 3 seconds ago", Ports=[])],
            [("died", "while the Docker Engine was away: Exited (137) 3 seconds ago")],
        ),
        ([], [("died", "while the Docker Engine was away: it was removed")]),
        (
            [summary(NetworkSettings={"Networks": {"bridge": {"EndpointID": "e2"}}})],
            [("restarted", "while the Docker Engine was away")],
        ),
        ([summary(State="paused")], []),
    ],
    ids=["nothing", "exited", "removed", "restarted", "paused"],
)
def test_recovers_missed_events_from_the_listing(
    listing: list[ContainerSummary], said: list[tuple[str, str]]
) -> None:
    roster = roster_of()

    assert [(incident.what, incident.why) for incident in roster.resync(listing, NOON)] == said
    assert roster.resync(listing, NOON) == []


def test_does_not_report_a_listed_exit_again() -> None:
    roster = roster_of()
    roster.resync([summary(State="exited", Status="Exited (1) 1 second ago")], NOON)

    assert incidents(roster, event("die", exitCode="1")) == []


def test_identifies_an_exited_container_by_its_last_address() -> None:
    roster = roster_of()
    incidents(roster, event("die", exitCode="1"))
    roster.update([summary(State="exited", Ports=[], NetworkSettings={})])

    assert [what for what, _ in incidents(roster, event("start"))] == ["restarted"]


def test_forgets_a_removed_container() -> None:
    roster = roster_of()

    assert incidents(roster, event("destroy"), event("oom", name="vllm")) == []


# A real Engine


class World:
    """Containers of one test on a real Engine: empty images over the host's own programs."""

    def __init__(self, api: docker.APIClient) -> None:
        self.api = api
        self.prefix = f"flettner-ears-{uuid4().hex[:8]}"
        empty = io.BytesIO()
        tarfile.open(fileobj=empty, mode="w").close()
        self.image = f"{self.prefix}:1"
        api.import_image_from_data(empty.getvalue(), repository=self.prefix, tag="1")
        self.network = self.prefix
        api.create_network(self.network)

    def started(
        self, name: str, command: str, *, labels: dict[str, str] | None = None, **host: object
    ) -> str:
        """Its name. It runs `command` in a shell of the host's."""
        body = {
            "Image": self.image,
            "Entrypoint": ["/bin/sh", "-c", command],
            "Labels": labels or {},
            "HostConfig": {
                "Binds": [f"{part}:{part}:ro" for part in HOST_PARTS if Path(part).exists()],
                "NetworkMode": self.network,
                "Init": False,
                **host,
            },
        }
        name = f"{self.prefix}-{name}"
        self.api.create_container_from_config(body, name)  # type: ignore[no-untyped-call]
        self.api.start(name)
        return name

    def close(self) -> None:
        for container in self.api.containers(all=True):
            if any(name.startswith(f"/{self.prefix}") for name in container["Names"]):
                with suppress(NotFound):
                    self.api.remove_container(container["Id"], force=True)
        self.api.remove_network(self.network)
        self.api.remove_image(self.image, force=True)
        self.api.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World(docker.APIClient(base_url=f"unix://{SOCKET}", version="auto"))
    yield made
    made.close()


def site_labels(world: World, server: str = "chat-r1") -> dict[str, str]:
    return {TARGET: world.prefix, SERVER: server}


def received_incidents(received: ReceivedSamples) -> list[tuple[str, str]]:
    return [(incident.server, incident.what) for incident in received.of(Incident)]


async def listed(received: ReceivedSamples, world: World) -> None:
    """Wait until the sensor receives events: pause a probe container until it reports that."""
    name = world.started("probe", "exec sleep 1000", labels=site_labels(world, "probe"))
    while ("probe", "paused") not in received_incidents(received):
        await asyncio.to_thread(world.api.pause, name)
        await asyncio.to_thread(world.api.unpause, name)
        await asyncio.sleep(0.1)


@pytest.mark.smoke
async def test_receives_the_events_of_real_containers(world: World) -> None:
    fleet = Fleet({"chat-r0": ""}, target=world.prefix)
    async with run_sensor(DockerEvents(), fleet) as received:
        await listed(received, world)
        blue = world.started("blue", "exec sleep 1000", PortBindings={})
        address = world.api.inspect_container(blue)["NetworkSettings"]["Networks"][world.network]["IPAddress"]
        fleet.addresses["chat-r0"] = f"{address}:8000"
        world.api.pause(blue)
        # The address of an event's container is in the list that follows its start, while it has a network.
        await received.until(lambda: ("chat-r0", "paused") in received_incidents(received))
        world.api.unpause(blue)
        world.api.rename(blue, f"{blue}-mine")
        world.api.disconnect_container_from_network(f"{blue}-mine", world.network)
        await received.until(lambda: ("chat-r0", "disconnected") in received_incidents(received))
        world.api.kill(f"{blue}-mine")
        world.api.start(f"{blue}-mine")
        world.started("foreign", "exit 3", labels={TARGET: "another"})
        world.started(
            "loop",
            "exit 3",
            labels=site_labels(world),
            RestartPolicy={"Name": "on-failure", "MaximumRetryCount": 1},
        )
        memory = {"Memory": 32 << 20, "MemorySwap": 32 << 20}
        world.started("oom", "tail /dev/zero", labels=site_labels(world, "chat-r2"), **memory)
        await received.until(lambda: ("chat-r2", "died") in received_incidents(received))
        await received.until(lambda: received_incidents(received).count(("chat-r1", "died")) == 2)

    mine = [(server, what) for server, what in received_incidents(received) if server != "probe"]
    assert [what for server, what in mine if server == "chat-r0"] == [
        "paused",
        "renamed",
        "disconnected",
        "died",
        "restarted",
    ]
    assert [what for server, what in mine if server == "chat-r1"] == ["died", "restarted", "died"]
    # the kernel may kill more than one process of a container
    assert list(dict.fromkeys(what for server, what in mine if server == "chat-r2")) == ["oom", "died"]
    assert {server for server, _ in mine} == {"chat-r0", "chat-r1", "chat-r2"}
    assert received.states() == []


async def test_reports_an_unreachable_engine_once_and_missed_events_later(
    world: World, docker_socket: EngineSocket
) -> None:
    sensor = DockerEvents(host=docker_socket.host, retry_at_most_s=0.5)
    async with run_sensor(sensor, Fleet(target=world.prefix)) as received:
        await listed(received, world)
        green = world.started("green", "exec sleep 1000", labels=site_labels(world))
        await asyncio.to_thread(world.api.pause, green)
        await received.until(lambda: ("chat-r1", "paused") in received_incidents(received))
        await docker_socket.close()
        await received.until(lambda: len(received.states()) == 1)
        await asyncio.to_thread(world.api.remove_container, green, force=True)
        await asyncio.sleep(1.5)  # a few failed retries
        await docker_socket.open()
        await received.until(lambda: len(received.states()) == 2)

        lost, back = received.states()
        assert (lost.source, lost.available, back.available) == ("docker_events", False, True)
        assert "docker.sock" in lost.why or "closed" in lost.why or "event stream" in lost.why
        assert received.of(Incident)[-1] == replace(
            received.of(Incident)[-1],
            server="chat-r1",
            what="died",
            why="while the Docker Engine was away: it was removed",
        )
        assert received.samples[-2:] == [received.of(Incident)[-1], back]


async def test_reopens_a_silent_stream_without_a_log_line(world: World, docker_socket: EngineSocket) -> None:
    sensor = DockerEvents(host=docker_socket.host, silence_s=0.5)
    async with run_sensor(sensor, Fleet(target=world.prefix)) as received:
        async with asyncio.timeout(60):
            while docker_socket.times("/events") < 3:
                await asyncio.sleep(0.05)

        assert received.states() == []


async def test_cancelling_leaves_no_thread_and_no_connection(
    world: World, docker_socket: EngineSocket
) -> None:
    async with run_sensor(DockerEvents(host=docker_socket.host), Fleet(target=world.prefix)) as received:
        await listed(received, world)
        assert any(thread.name == THREAD_NAME for thread in threading.enumerate())
        assert docker_socket.connections

    assert not any(thread.name == THREAD_NAME for thread in threading.enumerate())
    async with asyncio.timeout(60):
        while docker_socket.connections:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("host", ["unix:///no/such/docker.sock", "tcp://127.0.0.1:1", "nonsense://x"])
async def test_reports_an_engine_that_was_never_reachable_with_its_address(host: str) -> None:
    async with run_sensor(DockerEvents(host=host)) as received:
        await received.until(received.states)

    (state,) = received.states()
    assert not state.available
    assert state.why


@pytest.mark.parametrize(
    ("options", "why"),
    [({"timeout_s": 0.0}, "timeout_s"), ({"silence_s": -1.0}, "silence_s"), ({"host": 5}, "host")],
)
def test_rejects_invalid_options(options: dict[str, Any], why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        DockerEvents(**options)
