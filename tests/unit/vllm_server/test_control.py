"""The client of the control endpoint, against the endpoint that runs inside vLLM."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from structlog.testing import capture_logs

from flettner.actuators.vllm.control import (
    ControlEndpoint,
    control_path,
    describe,
    note_on_live_limits,
    with_own_control,
)
from flettner.actuators.vllm.engine import VllmEngine
from flettner.agent.domain.errors import ActError, DriftError
from flettner.agent.domain.model import HotKnobs, Server
from flettner.agent.domain.ports import Site
from flettner.flettner_vllm.scheduler import Knobs, Limit, start_control
from flettner.vllm_facts.live_limits import CONTROL, SCHEDULER_CLASS
from flettner.vllm_facts.values import Setting

FLAGS: Setting = {"model": "m", "max_num_seqs": 16, "max_num_active_seqs": 4}
SERVER = Server(name="chat-r1", setting=FLAGS, address="127.0.0.1:8101")
START = {"max_num_seqs": 4, "max_num_scheduled_tokens": 2048}
LIMITS = {"max_num_seqs": Limit(1, 16), "max_num_scheduled_tokens": Limit(16, 2048)}


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as folder:  # pytest's own is longer than the path of a socket may be
        yield Path(folder)


@pytest.fixture
def knobs() -> Knobs:
    return Knobs(START, LIMITS)


@pytest.fixture
def endpoint(folder: Path, knobs: Knobs) -> Iterator[ControlEndpoint]:
    path = folder / "control.sock"
    server = start_control(str(path), knobs, "", "0.32.0")
    yield ControlEndpoint(path)
    server.shutdown()
    server.server_close()


async def test_a_server_has_the_knobs_of_its_endpoint_under_the_names_of_flags(
    endpoint: ControlEndpoint,
) -> None:
    server = await endpoint.add_to(SERVER)

    limits = {"max_num_active_seqs": (1, 16), "max_num_batched_tokens": (16, 2048)}
    start = {"max_num_active_seqs": 4, "max_num_batched_tokens": 2048}
    assert server.hot == HotKnobs(limits=limits, start=start)
    assert server.setting == FLAGS


async def test_values_without_a_lease_are_part_of_the_setting(endpoint: ControlEndpoint) -> None:
    await endpoint.set(SERVER, {"max_num_active_seqs": 8}, (3, 7), None)
    await endpoint.set(SERVER, {"max_num_active_seqs": 16}, (3, 8), 600)

    server = await endpoint.add_to(SERVER)

    assert server.setting == {**FLAGS, "max_num_active_seqs": 8}
    assert server.hot is not None
    assert server.hot.number == (3, 8)


async def test_a_number_below_the_one_in_force_is_drift(endpoint: ControlEndpoint, knobs: Knobs) -> None:
    await endpoint.set(SERVER, {"max_num_active_seqs": 8}, (3, 7), None)

    with pytest.raises(DriftError, match=r"\[3, 6\] is below \[3, 7\]"):
        await endpoint.set(SERVER, {"max_num_active_seqs": 16}, (3, 6), None)
    await endpoint.set(SERVER, {"max_num_active_seqs": 8}, (3, 7), None)

    assert knobs.take() == {**START, "max_num_seqs": 8}


async def test_values_meant_for_another_start_are_drift(endpoint: ControlEndpoint, knobs: Knobs) -> None:
    started_with_8 = replace(SERVER, hot=HotKnobs(limits={}, start={"max_num_active_seqs": 8}))

    with pytest.raises(DriftError, match="started with max_num_active_seqs=8, and since then with 4"):
        await endpoint.set(started_with_8, {"max_num_active_seqs": 8}, (3, 7), None)
    assert knobs.take() is None
    await endpoint.set(await endpoint.add_to(SERVER), {"max_num_active_seqs": 8}, (3, 7), None)
    await endpoint.set(await endpoint.add_to(SERVER), {"max_num_active_seqs": 6}, (3, 8), None)


@pytest.mark.parametrize(
    ("values", "why"),
    [({"max_num_active_seqs": 17}, "from 1 to 16"), ({"block_size": 32}, "block_size cannot be changed")],
)
async def test_a_value_outside_its_range_and_an_unknown_knob_are_refused(
    endpoint: ControlEndpoint, knobs: Knobs, values: Setting, why: str
) -> None:
    with pytest.raises(ActError, match=why) as refused:
        await endpoint.set(SERVER, values, (1, 1), None)

    assert not isinstance(refused.value, DriftError)
    assert knobs.take() is None


async def test_without_an_endpoint_a_server_has_no_hot_knobs(folder: Path) -> None:
    endpoint = ControlEndpoint(folder / "nothing.sock")

    assert await endpoint.add_to(SERVER) == SERVER
    with pytest.raises(ActError, match="no answer"):
        await endpoint.set(SERVER, {}, (1, 1), None)


async def test_a_server_of_several_engines_has_no_hot_knobs(endpoint: ControlEndpoint) -> None:
    server = Server(name="chat-r1", setting={**FLAGS, "data_parallel_size": 2})

    assert (await endpoint.add_to(server)).hot is None


@pytest.mark.parametrize(
    ("version", "setting", "cap", "budget"),
    [
        ("0.30.2", {}, "max_num_seqs", "max_num_batched_tokens"),
        ("0.31.0", {}, "max_num_active_seqs", "max_num_batched_tokens"),
        ("0.32.0", {"max_num_scheduled_tokens": 64}, "max_num_active_seqs", "max_num_scheduled_tokens"),
    ],
)
def test_the_flag_that_a_limit_belongs_to_depends_on_the_release(
    version: str, setting: Setting, cap: str, budget: str
) -> None:
    server = describe(
        Server(name="chat-r1", setting=setting), {"vllm": version, **Knobs(START, LIMITS).show()}
    )

    assert server.hot is not None
    assert set(server.hot.limits) == {cap, budget}


@pytest.mark.parametrize("document", [{}, {"limits": {"watermark": [0, 1]}}, {"limits": {"max_num_seqs": 3}}])
def test_an_answer_that_is_not_of_this_endpoint_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ActError, match="answers"):
        describe(SERVER, document)


def test_only_the_path_of_a_socket_is_used() -> None:
    assert control_path({CONTROL: "/run/vllm/control.sock"}) == Path("/run/vllm/control.sock")
    assert control_path({CONTROL: "127.0.0.1:9100"}) is None
    assert control_path({}) is None


def test_another_server_gets_a_socket_of_its_own() -> None:
    env = {"HOME": "/root", CONTROL: "/run/vllm/control.sock"}

    assert with_own_control(env, "chat-r3") == {**env, CONTROL: "/run/vllm/chat-r3.sock"}
    assert with_own_control({"HOME": "/root"}, "chat-r3") == {"HOME": "/root"}


@pytest.mark.parametrize(
    ("setting", "hot", "noted"),
    [
        ({**FLAGS, "max_num_active_seqs": 8}, None, True),
        ({**FLAGS, "block_size": 32, "max_num_active_seqs": 8}, None, False),
        ({**FLAGS, "max_num_active_seqs": 8}, HotKnobs(limits={}), False),
        (FLAGS, None, False),
    ],
)
def test_a_suggestion_says_what_would_save_the_restart(
    setting: Setting, hot: HotKnobs | None, *, noted: bool
) -> None:
    notes = note_on_live_limits([replace(SERVER, hot=hot)], setting)

    assert bool(notes) is noted
    assert all("--scheduler-cls flettner_vllm.scheduler.Scheduler" in note for note in notes)


def test_a_suggestion_says_that_the_endpoint_of_the_class_does_not_answer() -> None:
    silent = replace(SERVER, setting={**FLAGS, "scheduler_cls": SCHEDULER_CLASS})

    (note,) = note_on_live_limits([silent], {**silent.setting, "max_num_active_seqs": 8})

    assert "if the control endpoint of chat-r1 answered: FLETTNER_CONTROL must be set" in note


class SameSocket(VllmEngine):
    """An engine whose servers name the same socket."""

    def __init__(self, endpoint: ControlEndpoint) -> None:
        super().__init__(Site(target="chat", state_dir=endpoint.path.parent, epoch=1))
        self.endpoint = endpoint
        self.main_pid = 0

    async def _control(self, server: Server) -> ControlEndpoint:  # noqa: ARG002 - all have the same
        return replace(self.endpoint, main_pid=self.main_pid)

    async def check_address(self, server: Server) -> None:
        """It has none."""

    async def _api_key(self, server: Server) -> str:
        raise NotImplementedError

    async def _recent_log(self, server: Server, lines: int = 0) -> Sequence[str]:
        raise NotImplementedError

    async def observed(self, *servers: Server) -> Sequence[Server]:
        return await self._with_hot_knobs(servers)


async def test_an_endpoint_is_asked_again_if_it_did_not_answer(folder: Path, knobs: Knobs) -> None:
    path = folder / "control.sock"
    requests = list[asyncio.StreamWriter]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"vllm": "0.32.0", **knobs.show()})
        if len(requests) > 1:
            writer.write(f"HTTP/1.0 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        server = await ControlEndpoint(path).add_to(SERVER)

    assert server.hot is not None
    assert len(requests) == 2


async def test_a_socket_that_two_servers_name_belongs_to_neither(endpoint: ControlEndpoint) -> None:
    engine, other = SameSocket(endpoint), replace(SERVER, name="chat-r2")

    assert [server.hot for server in await engine.observed(SERVER, other)] == [None, None]
    assert [server.hot is None for server in await engine.observed(SERVER)] == [False]


async def test_a_socket_that_another_server_listens_at_gives_no_hot_knobs_and_is_reported_once(
    endpoint: ControlEndpoint,
) -> None:
    engine = SameSocket(endpoint)
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
    )
    engine.main_pid = other.pid
    try:
        with capture_logs() as logs:
            hot = [(await engine.observed(SERVER))[0].hot for _ in range(2)]
        with pytest.raises(ActError, match=f"process {os.getpid()}, .* listens at {endpoint.path}"):
            await engine.set_knobs(SERVER, {"max_num_active_seqs": 8}, (1, 1))
    finally:
        other.kill()
        await other.wait()

    assert hot == [None, None]
    assert [(line["event"], line["server"]) for line in logs] == [("control.of_another_server", "chat-r1")]


@pytest.mark.parametrize(
    "find_pid",
    [
        pytest.param(lambda: 0, id="unknown"),
        pytest.param(os.getpid, id="the server itself"),
        pytest.param(os.getppid, id="its parent"),
        pytest.param(lambda: 2**22 + 1, id="not visible"),  # above the largest pid
    ],
)
async def test_a_socket_of_the_server_or_of_an_unknown_process_gives_hot_knobs(
    endpoint: ControlEndpoint, find_pid: Callable[[], int]
) -> None:
    engine = SameSocket(endpoint)
    engine.main_pid = find_pid()

    assert (await engine.observed(SERVER))[0].hot is not None
