"""Any answer of a Docker Engine is a container event or an error of the source."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flettner.agent.domain.errors import SensorError
from flettner.clients.docker.api import EngineAt
from flettner.clients.docker.parse import ContainerEvent, event_of, summaries_of
from flettner.sensors.docker_events.plugin import ACTIONS as FOLLOWED
from flettner.sensors.docker_events.plugin import ContainerListing, open_stream
from flettner.sensors.docker_events.registry import ContainerRegistry
from tests.unit.sensors.run_sensor import NOON, Fleet

TEXTS = st.text(max_size=8) | st.sampled_from(
    ["c1", "lab", "127.0.0.1", "flettner.target", "container", "/vllm"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([10**400, 10**4000]) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
WORDS = st.dictionaries(
    TEXTS | st.sampled_from(["name", "oldName", "signal", "exitCode", "container"]), TEXTS, max_size=4
)
ACTIONS = TEXTS | st.sampled_from([*FOLLOWED, "connect", "disconnect", "health_status: unhealthy", "die x"])
EVENTS = st.builds(
    lambda kind, action, key, attributes: {
        "Type": kind,
        "Action": action,
        "Actor": {"ID": key, "Attributes": attributes},
    },
    st.sampled_from(["container", "network"]) | JSON,
    ACTIONS | JSON,
    st.sampled_from(["c1", "c2"]) | JSON,
    WORDS | JSON,
)
SUMMARIES = st.fixed_dictionaries(
    {"Id": st.sampled_from(["c1", "c2"]) | JSON},
    optional={
        "Names": st.lists(TEXTS, max_size=2) | JSON,
        "Labels": WORDS | JSON,
        "State": st.sampled_from(["running", "exited"]) | JSON,
        "Status": TEXTS | JSON,
        "Ports": st.lists(st.fixed_dictionaries({"IP": TEXTS, "PublicPort": JSON}), max_size=2) | JSON,
        "NetworkSettings": st.dictionaries(st.just("Networks"), st.dictionaries(TEXTS, JSON, max_size=2))
        | JSON,
    },
)
DEEP = st.integers(0, 20_000).map(lambda depth: b'[{"Labels": ' + b"[" * depth)
BODIES = (
    st.binary(max_size=100)
    | DEEP
    | st.one_of(JSON, EVENTS, st.lists(SUMMARIES, max_size=3)).map(
        lambda document: json.dumps(document).encode()
    )
)


@given(st.lists(BODIES, max_size=8))
def test_any_bytes_are_container_events_or_an_error_of_the_source(bodies: list[bytes]) -> None:
    registry = ContainerRegistry(Fleet({"chat-r0": "127.0.0.1:8101"}))
    for clock_s, text in enumerate(bodies):
        with suppress(SensorError):
            heard = registry.record(event_of(text), NOON, clock_s)
            assert len(heard) <= 1
        with suppress(SensorError):
            registry.update(summaries_of(text))
            registry.resync(summaries_of(text), NOON)
        registry.confirm_held(NOON, clock_s)


@given(BODIES)
def test_an_error_of_the_source_is_short(body: bytes) -> None:
    why = ""
    try:
        event_of(body)
    except SensorError as error:
        why = str(error)

    assert len(why) < 500


def test_the_number_of_followed_containers_is_bounded() -> None:
    registry = ContainerRegistry(Fleet())

    for number in range(10_000):
        registry.record(event_of(b'{"Actor": {"ID": "c%d"}}' % number), NOON, 0.0)

    with pytest.raises(SensorError, match="more than 10000 containers"):
        registry.record(event_of(b'{"Actor": {"ID": "another"}}'), NOON, 0.0)


class GarbageEngine:
    """A fake Engine that answers each path with given bytes."""

    def __init__(self, path: Path) -> None:
        self.host = f"unix://{path}"
        self.answers: dict[str, bytes] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                visitor, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(visitor,)).start()

    def _answer(self, visitor: socket.socket) -> None:
        with visitor, visitor.makefile("rb") as request, suppress(OSError):
            line = request.readline().decode()
            while request.readline().strip():
                pass
            if line:  # not an empty connection
                path = line.split()[1].partition("?")[0]
                visitor.sendall(self.answers[path.rpartition("/")[2]])

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def chunked(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    return head + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n" if body else head + b"0\r\n\r\n"


@pytest.fixture(scope="module")
def garbage_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GarbageEngine]:
    made = GarbageEngine(tmp_path_factory.mktemp("engine") / "docker.sock")
    yield made
    made.close()


async def collect_samples(host: str) -> list[object]:
    """Return all samples up to the end of the stream."""
    heard: list[object] = []
    async with asyncio.timeout(60), open_stream(EngineAt(host=host, timeout_s=5.0), 5.0) as stream:
        with suppress(SensorError):
            while item := await stream.next():
                heard.append(item)
    return heard


VERSION = chunked(b'{"ApiVersion": "1.41"}')


@settings(max_examples=50)
@given(st.just(VERSION) | BODIES.map(chunked), BODIES.map(chunked) | BODIES, BODIES.map(chunked) | BODIES)
def test_any_answer_of_an_engine_ends_the_stream(
    garbage_engine: GarbageEngine, version: bytes, events: bytes, containers: bytes
) -> None:
    garbage_engine.answers = {"version": version, "events": events, "json": containers}

    for item in asyncio.run(collect_samples(garbage_engine.host)):
        assert isinstance(item, ContainerEvent | ContainerListing)


@pytest.mark.parametrize(
    ("events", "containers", "heard"),
    [
        (b'{"Type": "container", "Action": "oom"}\n', b"[]", ["ContainerListing", "ContainerEvent"]),
        (b'{"Action": "die"}\n\n[]\n{"Action": "die"}\n', b"[]", ["ContainerListing", "ContainerEvent"]),
        (b"x" * 2**21, b"[]", ["ContainerListing"]),
        (b"[" * 100_000 + b"\n", b"[]", ["ContainerListing"]),
        (b"", b"[]" + b" " * 2**23, []),
        (b"", b"[" * 100_000, []),
        (b"", b'[{"Id": 7}]', []),
        (b'{"Action": "die"}\n' * 20_000, b"[]", None),
    ],
    ids=["good", "a list", "endless", "nested", "large list", "nested list", "no id", "flood"],
)
async def test_readable_events_are_received_until_an_unreadable_one(
    garbage_engine: GarbageEngine, events: bytes, containers: bytes, heard: list[str] | None
) -> None:
    garbage_engine.answers = {"version": VERSION, "events": chunked(events), "json": chunked(containers)}

    samples = [type(item).__name__ for item in await collect_samples(garbage_engine.host)]

    assert samples == heard or (heard is None and len(samples) <= 20_001)
