"""The scheduler inside vLLM, with stand-ins for the schedulers of old and new releases."""

import http.client
import json
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flettner.flettner_vllm.scheduler import Knobs, Limit, Refused, Scheduler, find_address, is_known

START = {"max_num_seqs": 4, "max_num_scheduled_tokens": 64}
LIMITS = {"max_num_seqs": Limit(1, 16), "max_num_scheduled_tokens": Limit(16, 64)}


class OldScheduler:
    """A release up to 0.28: one number is the capacity and the cap, and a step asserts it at its end."""

    def __init__(self, *, vllm_config: SimpleNamespace) -> None:
        self.vllm_config, self.scheduler_config = vllm_config, vllm_config.scheduler_config
        self.max_num_running_reqs = self.scheduler_config.max_num_seqs
        self.max_num_scheduled_tokens = 64
        self.num_spec_tokens = 1
        self.kv_cache_manager: Any = SimpleNamespace()
        self.kv_cache_config = SimpleNamespace(num_blocks=100)
        self.running: list[int] = []
        self.waiting = list(range(100))

    def schedule(self) -> int:
        while self.waiting and len(self.running) != self.max_num_running_reqs:
            self.running.append(self.waiting.pop())
        assert len(self.running) <= self.max_num_running_reqs
        return self.max_num_scheduled_tokens


class NewScheduler(OldScheduler):
    def __init__(self, *, vllm_config: SimpleNamespace) -> None:
        super().__init__(vllm_config=vllm_config)
        self.max_num_active_reqs = 2
        self.kv_cache_manager = SimpleNamespace(watermark_blocks=0)
        self.scheduler_config.watermark = 0.0

    def schedule(self, throttle_prefills: bool = False) -> int:
        while not throttle_prefills and self.waiting and len(self.running) < self.max_num_active_reqs:
            self.running.append(self.waiting.pop())
        return self.max_num_scheduled_tokens


def document(n: int, lease_s: float | None = None, **values: object) -> dict[str, object]:
    return {"number": [1, n], "values": values, "lease_s": lease_s}


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def knobs(clock: Clock) -> Knobs:
    return Knobs(START, LIMITS, clock)


def in_force(knobs: Knobs) -> object:
    return knobs.show()["in_force"]


def test_a_value_is_in_force_from_the_next_step_on(knobs: Knobs) -> None:
    assert knobs.take() is None

    knobs.set(document(1, max_num_seqs=8))

    assert knobs.show()["applied"] is None
    assert knobs.take() == {**START, "max_num_seqs": 8}
    assert knobs.show()["applied"] == (1, 1)
    assert knobs.take() is None


def test_a_value_returns_to_the_start_when_its_lease_ends(knobs: Knobs, clock: Clock) -> None:
    knobs.set(document(1, 10, max_num_seqs=8))
    knobs.take()
    clock.now_s += 6
    knobs.set(document(1, 10, max_num_seqs=8))
    clock.now_s += 6
    assert knobs.take() is None

    clock.now_s += 4

    assert knobs.take() == START
    assert in_force(knobs) == START


def test_the_end_of_a_lease_brings_back_what_was_set_without_one(knobs: Knobs, clock: Clock) -> None:
    knobs.set(document(1, max_num_seqs=8))
    knobs.set(document(2, 5, max_num_seqs=16))
    assert knobs.take() == {**START, "max_num_seqs": 16}
    clock.now_s += 5

    assert knobs.take() == {**START, "max_num_seqs": 8}
    assert knobs.show()["kept"] == knobs.show()["in_force"] == {**START, "max_num_seqs": 8}


def test_a_lease_that_ends_before_the_first_step_leaves_the_start(knobs: Knobs, clock: Clock) -> None:
    knobs.set(document(1, 10, max_num_seqs=8))
    clock.now_s += 11

    assert in_force(knobs) == START
    assert knobs.take() == START


def test_a_change_that_was_sent_before_the_end_of_a_lease_stays_out(knobs: Knobs, clock: Clock) -> None:
    knobs.set(document(7, 1, max_num_seqs=8))
    clock.now_s += 2

    with pytest.raises(Refused, match=r"\[1, 6\] is below \[1, 7\]"):
        knobs.set(document(6, 10, max_num_seqs=9))
    with pytest.raises(Refused, match="had other values"):
        knobs.set(document(7, 10, max_num_seqs=8))

    assert in_force(knobs) == START


def test_a_newer_epoch_wins(knobs: Knobs) -> None:
    knobs.set(document(50, max_num_seqs=8))

    knobs.set({"number": [2, 1], "values": {}, "lease_s": None})

    assert in_force(knobs) == START


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ([], "must be an object"),
        ({"number": [1, 1], "values": {}}, '"lease_s"'),
        ({"number": [1, True], "values": {}, "lease_s": 1}, "EPOCH"),
        ({"number": 1, "values": {}, "lease_s": 1}, "EPOCH"),
        (document(1, 0), "lease_s 0"),
        (document(1, float("nan")), "lease_s nan"),
        (document(1, 1e9), "at most 3600"),
        ({"number": [1, 1], "values": [], "lease_s": 1}, "values"),
        (document(1, block_size=8), "block_size: unknown here; known: max_num_seqs"),
        (document(1, max_num_seqs=0), "from 1 to 16"),
        (document(1, max_num_seqs=17), "from 1 to 16"),
        (document(1, max_num_seqs=2.0), "whole number"),
        (document(1, max_num_seqs=True), "whole number"),
    ],
)
def test_a_bad_request_changes_nothing(knobs: Knobs, sent: object, why: str) -> None:
    knobs.set(document(1, max_num_seqs=5))

    with pytest.raises(Refused, match=why) as refused:
        knobs.set(sent)

    assert refused.value.status == 400
    assert in_force(knobs) == {**START, "max_num_seqs": 5}
    assert knobs.show()["number"] == (1, 1)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A vLLM whose synchronous scheduler is of an old release, and the asynchronous one of a new one."""
    package = ModuleType("vllm")
    package.__version__ = "0.32.0"  # type: ignore[attr-defined]
    modules = {
        "vllm": package,
        "vllm.v1.core.sched.scheduler": SimpleNamespace(Scheduler=OldScheduler),
        "vllm.v1.core.sched.async_scheduler": SimpleNamespace(AsyncScheduler=NewScheduler),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return package


def config(*, is_async: bool, chunked: bool = True, rank: int = 0) -> SimpleNamespace:
    scheduler = SimpleNamespace(
        max_num_seqs=16,
        async_scheduling=is_async,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=0,
    )
    return SimpleNamespace(
        scheduler_config=scheduler, parallel_config=SimpleNamespace(data_parallel_rank=rank)
    )


class Control:
    """A client of the endpoint at a socket."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ask(self, method: str = "GET", body: object = None, **headers: str) -> tuple[int, dict[str, Any]]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.path))
            client = http.client.HTTPConnection("engine")
            client.sock = connection
            client.request(method, "/knobs", None if body is None else json.dumps(body), headers)
            answer = client.getresponse()
            return answer.status, json.loads(answer.read())


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vllm: ModuleType) -> Control:  # noqa: ARG001
    path = tmp_path / "control.sock"
    monkeypatch.setenv("FLETTNER_CONTROL", str(path))
    return Control(path)


@pytest.mark.parametrize("is_async", [False, True], ids=["old", "new"])
def test_the_number_of_running_requests_follows_the_cap_and_ends_none(
    control: Control, *, is_async: bool
) -> None:
    scheduler = Scheduler(vllm_config=config(is_async=is_async))
    first = control.ask()[1]["start"]["max_num_seqs"]
    scheduler.schedule()
    assert len(scheduler.running) == first

    control.ask("PUT", document(1, 60, max_num_seqs=12))
    scheduler.schedule()
    assert len(scheduler.running) == max(12, first)

    control.ask("PUT", document(2, 60, max_num_seqs=3))
    before = tuple(scheduler.running)
    scheduler.schedule()
    assert tuple(scheduler.running) == before  # none is taken off
    del scheduler.running[2:]
    scheduler.schedule()
    assert len(scheduler.running) == 3


def test_all_limits_of_a_step_are_set(control: Control) -> None:
    scheduler = Scheduler(vllm_config=config(is_async=True))
    values = {"max_num_scheduled_tokens": 40, "long_prefill_token_threshold": 24, "watermark": 0.25}

    status, answer = control.ask("PUT", document(1, 60, **values))

    assert status == 200
    assert answer["in_force"] == {"max_num_seqs": 2, **values}
    assert scheduler.schedule(throttle_prefills=True) == 40
    assert scheduler.scheduler_config.long_prefill_token_threshold == 24
    assert scheduler.kv_cache_manager.watermark_blocks == 25
    assert control.ask()[1]["applied"] == [1, 1]
    assert scheduler.running == []


def test_a_step_keeps_a_token_for_each_running_request_and_its_draft(control: Control) -> None:
    Scheduler(vllm_config=config(is_async=True))

    assert control.ask()[1]["limits"]["max_num_scheduled_tokens"] == [32, 64]


def test_the_budget_is_fixed_where_a_prompt_must_fit_into_one_step(control: Control) -> None:
    Scheduler(vllm_config=config(is_async=True, chunked=False))

    assert control.ask()[1]["limits"]["max_num_scheduled_tokens"] == [64, 64]


def test_the_socket_is_its_owners_alone_and_that_of_a_killed_server_makes_way(control: Control) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(control.path))
    Scheduler(vllm_config=config(is_async=True))

    assert stat.S_IMODE(control.path.stat().st_mode) == 0o600
    assert control.ask()[0] == 200


def test_a_second_server_does_not_take_the_socket_of_the_first(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    first = Scheduler(vllm_config=config(is_async=True))
    second = Scheduler(vllm_config=config(is_async=True))
    control.ask("PUT", document(1, None, max_num_seqs=9))
    first.schedule()

    assert (first.max_num_active_reqs, second.max_num_active_reqs) == (9, 2)
    assert control.ask()[1]["applied"] == [1, 1]
    assert f"at {control.path}: another server listens there" in caplog.text


def test_an_address_that_is_too_long_is_named(
    control: Control, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"{control.path.parent}/{'x' * 120}/control.sock"
    monkeypatch.setenv("FLETTNER_CONTROL", path)
    Scheduler(vllm_config=config(is_async=True))

    assert f"at {path}: " in caplog.text
    assert "path too long" in caplog.text


def test_each_engine_of_a_data_parallel_server_has_its_own_address() -> None:
    parallel = SimpleNamespace(data_parallel_rank=2)

    assert find_address("/run/a.sock", parallel) == "/run/a.sock.2"
    assert find_address("127.0.0.1:9000", parallel) == ("127.0.0.1", 9002)


def test_a_token_is_asked_for(control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("FLETTNER_CONTROL_TOKEN_FILE", str(tmp_path / "token"))
    Scheduler(vllm_config=config(is_async=True))

    assert control.ask()[0] == 401
    assert control.ask("PUT", document(1, 60, max_num_seqs=5), Authorization="Bearer other")[0] == 401
    assert control.ask(Authorization="Bearer secret")[1]["in_force"]["max_num_seqs"] == 2


def obstacles() -> Iterator[tuple[str, str, str]]:
    yield "0.32.0", "", "FLETTNER_CONTROL is not set"
    yield "0.32.0", "0.0.0.0:9000", "must be the path of a socket, or 127.0.0.1:PORT"
    yield "0.32.0", "127.0.0.1:9000", "needs a token"
    yield "0.32.0", "/nowhere/at/all.sock", "No such file"
    yield "0.99.0", "/tmp/unused.sock", "vLLM 0.99.0 is not known"  # noqa: S108 - never opened


@pytest.mark.parametrize(("version", "address", "why"), [*obstacles()])
def test_vllm_starts_as_without_it_where_it_cannot_work(
    version: str,
    address: str,
    why: str,
    vllm: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    vllm.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setenv("FLETTNER_CONTROL", address)

    scheduler = Scheduler(vllm_config=config(is_async=True))

    assert "schedule" not in vars(scheduler)
    assert [why in record.message for record in caplog.records] == [True]


def test_an_unknown_scheduler_is_left_alone(
    control: Control, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Other(NewScheduler):
        def __init__(self, *, vllm_config: SimpleNamespace) -> None:
            super().__init__(vllm_config=vllm_config)
            del self.max_num_scheduled_tokens

    module = SimpleNamespace(AsyncScheduler=Other)
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.async_scheduler", module)

    scheduler = Scheduler(vllm_config=config(is_async=True))

    assert "schedule" not in vars(scheduler)
    assert "max_num_scheduled_tokens" in caplog.text
    assert not control.path.exists()


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (("0.11.0", "0.11.2.dev1+g12", "0.33.4"), True),
        (("0.10.2", "0.34.0", "dev", "", "1.0"), False),
    ],
)
def test_releases_that_are_known(versions: Sequence[str], *, expected: bool) -> None:
    assert {is_known(version) for version in versions} == {expected}


@pytest.mark.parametrize(
    "sent", [b"PUT /knobs HTTP/1.1\r\n\r\n", b"PUT /knobs HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"]
)
def test_half_a_request_does_not_block_the_next_one(control: Control, sent: bytes) -> None:
    Scheduler(vllm_config=config(is_async=True))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(control.path))
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)

        assert control.ask()[0] == 200
