"""The full loop of one target over fakes in virtual time: entries, effects and their order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from flettner.agent.audit.chain import verify
from flettner.agent.audit.journal import Journal
from flettner.agent.domain import events as e
from flettner.agent.domain.effects import Effect, Launch, Retire, Stop
from flettner.agent.domain.errors import ActError, FencedError, JournalError
from flettner.agent.domain.model import PreflightResult, Server
from flettner.agent.domain.ports import Now, Site, View
from flettner.agent.domain.reading import EngineSample, Request, RequestSample, Sample
from flettner.agent.domain.state import Phase
from flettner.agent.observe.minute_rows import MinuteRow
from flettner.agent.quality.golden_prompts import PROMPTS, GoldenPromptOptions
from flettner.agent.runtime.effect_runner import EffectRunner
from flettner.agent.runtime.loop import TargetLoop
from flettner.agent.runtime.time_series import HistorySource
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import NOON, in_no_time, in_virtual_time, loop_now
from tests.support.machine_stories import BLUE, rules
from tests.support.running_loop import start_loop
from tests.support.sampling import sampled


@dataclass(frozen=True)
class Clients:
    """A sensor: a queue at each server, and five answers per second from each server with traffic."""

    traffic: FakeTraffic
    green_fails: bool = False

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:
        while True:
            await asyncio.sleep(1)
            for server in view.servers():
                emit(
                    EngineSample(
                        at=now(), server=server.name, interval_s=1, running=4, waiting=12, kv_usage=0.1
                    )
                )
            requests = [self.answer(name) for name in self.traffic.weights_in_force for _ in range(5)]
            emit(RequestSample(at=now(), requests=tuple(requests)))

    def answer(self, server: str) -> Request:
        if self.green_fails and server != BLUE.name:
            return Request(server=server, outcome="failed", status=500, duration_s=0.1)
        return Request(server=server, outcome="ok", status=200, duration_s=1, ttft_s=0.1)


@asynccontextmanager
async def running(
    home: Path,
    engine: FakeEngine,
    traffic: FakeTraffic,
    *,
    green_fails: bool = False,
    epoch: int = 1,
    exam: GoldenPromptOptions | None = None,
    history: HistorySource | None = None,
) -> AsyncIterator[TargetLoop]:
    clients = Clients(traffic.bind(_site(home, epoch)), green_fails)
    chosen = rules(exam=exam or GoldenPromptOptions())
    daemon = start_loop(
        chosen, home=home, engine=engine, traffic=traffic, epoch=epoch, sensors=(clients,), history=history
    )
    try:
        yield daemon.loop
    finally:
        await daemon.stop()


def _site(home: Path, epoch: int) -> Site:
    return Site(target="chat", state_dir=home, epoch=epoch)


async def reach(loop: TargetLoop, *phases: Phase, within_s: float = 600) -> None:
    async with asyncio.timeout(within_s):
        while loop.state.phase not in phases:
            await asyncio.sleep(0.5)


async def approve(loop: TargetLoop) -> None:
    await reach(loop, Phase.PROPOSED)
    suggestion = loop.state.suggestions.open[0]
    await loop.submit(
        e.Approved(at=loop_now(), actor="alice", suggestion=suggestion.id, digest=suggestion.digest)
    )


@in_virtual_time
async def test_a_promotion_records_every_step_in_the_journal(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE, takes_s=3), FakeTraffic()

    async with running(tmp_path, engine, traffic) as loop:
        await approve(loop)
        await reach(loop, Phase.OBSERVING)
        assert traffic.bind(_site(tmp_path, 1)).weights_in_force == {"chat-r1": 100}

    assert engine.calls == [
        ("preflight", BLUE.name),
        ("launch", "chat-r1"),
        ("warm_up", "chat-r1"),
        ("retire", BLUE.name),
    ]
    assert verify(tmp_path / "audit.jsonl").ok
    actions = [
        record["action"] for record in Journal.open(tmp_path / "audit.jsonl", now=lambda: NOON).after(0, 99)
    ]
    expected = ["daemon.started", "traffic.routed", "suggestion.made", "suggestion.approved"]
    expected += [
        "server.launched",
        "rollout.canary_started",
        "rollout.advanced",
        "rollout.promoting",
        "rollout.promoted",
    ]
    assert [action for action in dict.fromkeys(actions) if action in expected] == expected


@dataclass
class Past:
    """A source of history with an hour of failing traffic, which answers after `wait_s`."""

    wait_s: float

    async def read_history(self, servers: Sequence[Server], after: int, until: int) -> Sequence[MinuteRow]:
        assert (list(servers), after) == ([BLUE], 0)
        await asyncio.sleep(self.wait_s)
        return [MinuteRow(at=until - 60 * ago, ttft_p95_s=99.0, waiting=1e4) for ago in range(60, 0, -1)]

    async def read_peaks(self, servers: Sequence[Server], after: int, until: int) -> Mapping[int, float]:
        del servers, after, until
        await asyncio.sleep(self.wait_s)
        return {}


def test_history_for_the_charts_changes_and_delays_no_step_of_a_rollout(tmp_path: Path) -> None:
    def play(home: Path, history: Past | None) -> tuple[list[tuple[str, str]], float, int]:
        async def scenario() -> tuple[float, int]:
            async with running(home, FakeEngine(BLUE, takes_s=3), FakeTraffic(), history=history) as loop:
                await approve(loop)
                await reach(loop, Phase.OBSERVING)
                loaded = sum(row.ttft_p95_s == 99.0 for row in loop.minutes)
                return asyncio.get_running_loop().time(), loaded

        home.mkdir()
        took_s, loaded = in_no_time(scenario())
        records = Journal.open(home / "audit.jsonl", now=lambda: NOON).after(0, 999)
        return [(record["action"], record["why"]) for record in records], took_s, loaded

    steps, took_s, _ = play(tmp_path / "without", None)
    with_history, with_s, loaded = play(tmp_path / "with", Past(wait_s=5))
    with_silent, silent_s, none = play(tmp_path / "silent", Past(wait_s=1e6))

    assert with_history == with_silent == steps
    assert [with_s, silent_s] == pytest.approx([took_s, took_s], abs=3)
    assert (loaded, none) == (60, 0)


@in_virtual_time
async def test_three_servers_are_replaced_one_by_one(tmp_path: Path) -> None:
    fleet = [replace(BLUE, name=f"vllm{n}", address=f"127.0.0.1:{8000 + n}") for n in range(3)]
    engine, traffic = FakeEngine(*fleet, takes_s=3), FakeTraffic()
    engine.preflight_result = PreflightResult(strategy="replace", why="no room")

    async with running(tmp_path, engine, traffic) as loop:
        await approve(loop)
        await reach(loop, Phase.OBSERVING)
        assert set(traffic.bind(_site(tmp_path, 1)).weights_in_force) == set(engine.servers)

    assert set(engine.servers) == {"chat-r1", "chat-r2", "chat-r3"}
    assert engine.stopped == {}
    assert {server.like for server in engine.servers.values()} == {server.name for server in fleet}
    serving = [sum(1 for weight in route.weights.values() if weight) for _, route in traffic.calls]
    assert min(serving) == 2
    assert verify(tmp_path / "audit.jsonl").ok


@in_virtual_time
async def test_a_failed_swap_restarts_blue_and_routes_nothing_to_a_stopped_server(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE, takes_s=3), FakeTraffic()
    engine.preflight_result = PreflightResult(strategy="swap", why="one GPU", outage_s=40.0)

    async with running(tmp_path, engine, traffic, green_fails=True) as loop:
        await approve(loop)
        await reach(loop, Phase.COOLDOWN)
        assert traffic.bind(_site(tmp_path, 1)).weights_in_force == {BLUE.name: 100}

    assert list(engine.servers) == [BLUE.name]
    assert [what for what, _ in engine.calls] == [
        "preflight",
        "stop",
        "launch",
        "warm_up",
        "retire",
        "launch",
    ]
    assert 40.0 in {route.closed_s for _, route in traffic.calls}


@in_virtual_time
async def test_a_green_with_wrong_answers_is_retired_and_its_answers_are_not_recorded(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE, takes_s=3), FakeTraffic()
    engine.wrong_answers["chat-r1"] = "a private matter"

    async with running(tmp_path, engine, traffic, exam=GoldenPromptOptions(always=True)) as loop:
        await approve(loop)
        await reach(loop, Phase.COOLDOWN)
        state = loop.state

    assert state.rollout is not None
    assert (state.rollout.exposed.total, state.outcomes[-1].result) == (0, "rolled_back")
    written = (tmp_path / "audit.jsonl").read_text()
    assert "rollout.rolling_back" in written
    assert "private" not in written
    assert PROMPTS[0] not in written


@in_virtual_time
async def test_a_swap_examines_blue_before_its_stop_and_compares_green_with_it(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE, takes_s=3), FakeTraffic()
    engine.preflight_result = PreflightResult(strategy="swap", why="one GPU", outage_s=40.0)

    async with running(tmp_path, engine, traffic, exam=GoldenPromptOptions(always=True)) as loop:
        await approve(loop)
        await reach(loop, Phase.CANARY)
        state = loop.state

    assert state.rollout is not None
    assert state.canary.quality is not None
    assert state.canary.quality.ok
    assert engine.calls[1:] == [
        *[("answers", BLUE.name)] * 2,
        ("stop", BLUE.name),
        ("launch", "chat-r1"),
        ("warm_up", "chat-r1"),
        ("answers", "chat-r1"),
    ]


@in_virtual_time
async def test_a_bad_green_is_retired_and_the_journal_counts_its_requests(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE, takes_s=3), FakeTraffic()

    async with running(tmp_path, engine, traffic, green_fails=True) as loop:
        await approve(loop)
        await reach(loop, Phase.COOLDOWN)
        state = loop.state

    assert list(engine.servers) == [BLUE.name]
    assert state.rollout is not None
    assert state.rollout.exposed.errors == state.rollout.exposed.total > 0


@in_virtual_time
async def test_no_effect_is_performed_without_a_journal_entry(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE), FakeTraffic()

    async with running(tmp_path, engine, traffic) as loop:
        await reach(loop, Phase.PROPOSED)
        loop.journal.close()
        with pytest.raises(JournalError):
            await approve(loop)

    assert engine.calls == [("preflight", "chat-r0")]


@in_virtual_time
async def test_an_abort_cancels_a_running_launch(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE, takes_s=500), FakeTraffic()

    async with running(tmp_path, engine, traffic) as loop:
        await approve(loop)
        await asyncio.sleep(5)
        engine.takes_s = 1
        await loop.submit(e.Aborted(at=loop_now(), actor="alice", reason="no"))
        since = asyncio.get_running_loop().time()
        await reach(loop, Phase.COOLDOWN)
        result = asyncio.get_running_loop().time() - since

    assert result < 10
    assert list(engine.servers) == [BLUE.name]


@in_virtual_time
async def test_an_engine_failure_rolls_back_with_its_last_log_lines(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE), FakeTraffic()
    engine.next_error = ActError("exited with 2: unrecognized arguments", ("usage: …",))

    async with running(tmp_path, engine, traffic) as loop:
        await approve(loop)
        await reach(loop, Phase.COOLDOWN)
        state = loop.state

    assert state.rollout is not None
    assert state.rollout.why == "exited with 2: unrecognized arguments"
    assert state.canary.log == ("usage: …",)


@pytest.mark.parametrize("seconds", sampled(range(0, 60, 4), 2))
@in_virtual_time
async def test_a_daemon_killed_at_any_second_recovers_to_a_consistent_end(
    tmp_path: Path, seconds: int
) -> None:
    engine, traffic = FakeEngine(replace(BLUE, ours=True), takes_s=3), FakeTraffic()

    async with running(tmp_path, engine, traffic) as loop:
        await approve(loop)
        await asyncio.sleep(seconds)
    async with running(tmp_path, engine, traffic, epoch=2) as loop:
        await asyncio.sleep(2)
        await reach(loop, Phase.OBSERVING, Phase.PROPOSED, Phase.COOLDOWN)
        await asyncio.sleep(5)
        state, weights = loop.state, traffic.bind(_site(tmp_path, 2)).weights_in_force

    assert state.fleet.blue is not None
    assert weights == {state.fleet.blue.name: 100}
    assert list(engine.servers) == [state.fleet.blue.name]


@in_virtual_time
async def test_an_expired_lease_ends_greens_share(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE), FakeTraffic()

    async with running(tmp_path, engine, traffic) as loop:
        await approve(loop)
        await reach(loop, Phase.CANARY)
        await asyncio.sleep(4)
    await asyncio.sleep(16)
    result = traffic.bind(_site(tmp_path, 1)).weights_in_force

    assert result == {BLUE.name: 100}


@in_virtual_time
async def test_traffic_leaves_a_server_that_hangs_in_the_canary(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE), FakeTraffic()

    async with running(tmp_path, engine, traffic) as loop:
        await approve(loop)
        await reach(loop, Phase.CANARY)
        engine.hang("chat-r1")
        await reach(loop, Phase.COOLDOWN)
        state = loop.state

    assert state.rollout is not None
    assert "does not answer" in state.rollout.why
    assert isinstance(state.fleet.blue, Server)


@in_virtual_time
async def test_without_a_rollout_the_fleet_is_calibrated_and_its_budget_counted(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE), FakeTraffic()

    async with running(tmp_path, engine, traffic) as loop:
        await asyncio.sleep(420)
        state = loop.state

    assert set(state.traffic.calibration) == {
        "errors",
        "stalled",
        "gave_up",
        "refused",
    }  # no latency objective
    assert {
        calibration.ticks >= 20 and calibration.phi == 1 for calibration in state.traffic.calibration.values()
    } == {True}
    assert sum(slot[1] for slot in state.budget.slots) >= 5 * 400


def test_a_daemon_fenced_off_by_another_stops_no_server(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE, takes_s=3), FakeTraffic()

    async def scenario() -> None:
        async with running(tmp_path, engine, traffic, green_fails=True) as loop:
            await approve(loop)
            await reach(loop, Phase.CANARY)
            newer = traffic.bind(_site(tmp_path, 2))
            assert loop.state.split.route is not None
            await newer.route(loop.state.split.route)
            loop.emit(e.ServerLost(at=loop_now(), server="chat-r1", why="exited"))
            await asyncio.sleep(60)

    with pytest.raises(ExceptionGroup) as ended:
        in_no_time(scenario())

    assert ended.group_contains(FencedError)
    assert set(engine.servers) == {BLUE.name, "chat-r1"}


@in_virtual_time
async def test_of_two_daemons_with_one_epoch_the_second_writer_ends(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE), FakeTraffic()

    async with running(tmp_path, engine, traffic) as loop:
        await reach(loop, Phase.PROPOSED)
        assert loop.state.split.route is not None
        other = EffectRunner(
            engine=engine,
            traffic=traffic.bind(_site(tmp_path, 1)),
            emit=list[e.Event]().append,
            now=loop_now,
            epoch=1,
        )
        before = list(traffic.calls)
        with pytest.raises(FencedError):
            await other.perform(loop.state.split.route)
        assert traffic.calls == before


def runner_of(tmp_path: Path, engine: FakeEngine, heard: list[e.Event]) -> EffectRunner:
    traffic = FakeTraffic().bind(_site(tmp_path, 1))
    return EffectRunner(engine=engine, traffic=traffic, emit=heard.append, now=loop_now, epoch=1)


@in_virtual_time
async def test_a_launch_waits_for_a_running_retirement(tmp_path: Path) -> None:
    engine, heard = FakeEngine(BLUE, takes_s=5), list[e.Event]()
    runner = runner_of(tmp_path, engine, heard)

    async with asyncio.TaskGroup() as tasks:
        runner.start(Retire(number=1, server=BLUE), tasks)
        await asyncio.sleep(1)
        runner.start(Launch(number=2, server=BLUE, deadline_s=60), tasks)

    assert [type(event) for event in heard] == [e.Retired, e.Launched]
    assert list(engine.servers) == [BLUE.name]


async def perform_at_once(tmp_path: Path, engine: FakeEngine, *effects: Effect) -> list[type[e.Event]]:
    """Request all of them at the same moment; return what their outcomes were."""
    heard = list[e.Event]()
    runner = runner_of(tmp_path, engine, heard)
    async with asyncio.TaskGroup() as tasks:
        for effect in effects:
            runner.start(effect, tasks)
    return [type(event) for event in heard]


STOP, LAUNCH = Stop(number=1, server=BLUE), Launch(number=2, server=BLUE, deadline_s=60)


@in_virtual_time
async def test_a_stop_ends_no_start_that_was_requested_after_it(tmp_path: Path) -> None:
    engine = FakeEngine(BLUE, takes_s=5)

    assert await perform_at_once(tmp_path, engine, STOP, LAUNCH) == [e.Stopped, e.Launched]
    assert list(engine.servers) == [BLUE.name]


@in_virtual_time
async def test_a_stop_ends_a_start_that_has_not_begun(tmp_path: Path) -> None:
    assert await perform_at_once(tmp_path, FakeEngine(BLUE, takes_s=5), LAUNCH, STOP) == [e.Stopped]


class OwnedEngine(FakeEngine):
    """Its watch ends once the owner of the server gives it another setting or start, as on Kubernetes."""

    async def watch(self, server: Server, emit: Callable[[e.ServerLost], None], now: Now) -> None:
        del emit, now

        def differs() -> bool:
            running = self.servers[server.name]
            return (running.setting, running.start) != (server.setting, server.start)

        while not differs():
            await self._changed.wait()

    def change(self, server: Server) -> None:
        self.servers[server.name] = server
        self._tell()


@in_virtual_time
async def test_a_server_that_its_owner_has_changed_is_looked_at_once(tmp_path: Path) -> None:
    engine, traffic = OwnedEngine(replace(BLUE, start={"image": "a:v1"})), FakeTraffic()

    async with running(tmp_path, engine, traffic) as loop:
        await asyncio.sleep(5)
        engine.change(replace(BLUE, start={"image": "a:v1@sha256:12"}))
        await asyncio.sleep(60)
        assert loop.state.fleet.servers[0].start == {"image": "a:v1@sha256:12"}

    records = Journal.open(tmp_path / "audit.jsonl", now=lambda: NOON).after(0, 999)
    assert [record["action"] for record in records].count("target.looked_at_again") == 1
