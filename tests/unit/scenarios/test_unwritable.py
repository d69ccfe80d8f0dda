"""An unwritable journal, at any moment and for any time: steps that run, wait, or are recorded late."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flettner.agent.audit.backlog import MAX_ENTRIES, Backlog, only_rolls_back
from flettner.agent.audit.chain import verify
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.records import DAEMON, JournalEntry, JournalRecord
from flettner.agent.domain import events as e
from flettner.agent.domain.effects import Drain, Launch, Preflight, Retire, Route
from flettner.agent.domain.errors import JournalError
from flettner.agent.domain.fleet import Fleet, Split
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from flettner.agent.runtime.loop import TargetLoop
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import NOON, in_no_time, in_virtual_time, loop_now
from tests.support.machine_stories import BLUE, PLAN, rules
from tests.support.running_loop import start_loop
from tests.support.sampling import examples
from tests.support.suggestions import approved
from tests.unit.scenarios.test_loop import Clients, approve, reach

GREEN = Server(name="chat-r1", setting={"max_num_seqs": 16}, address="127.0.0.1:8101", ours=True)


@dataclass
class Disk:
    """`full`: all writes fail. `fails`: the numbers of the writes that fail."""

    full: bool = False
    fails: frozenset[int] = frozenset()
    writes: int = 0
    refused: int = 0

    def sync(self, _: int) -> None:
        self.writes += 1
        if self.full or self.writes in self.fails:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass
class Place:
    """The servers of one target, and successive daemons."""

    home: Path
    disk: Disk = field(default_factory=Disk)
    engine: FakeEngine = field(default_factory=lambda: FakeEngine(BLUE, takes_s=3))
    traffic: FakeTraffic = field(default_factory=FakeTraffic)

    @property
    def path(self) -> Path:
        return self.home / "audit.jsonl"

    @property
    def weights(self) -> dict[str, int]:
        return self.traffic.bind(self.site(1)).weights_in_force

    def site(self, epoch: int) -> Site:
        return Site(target="chat", state_dir=self.home, epoch=epoch)

    def records(self) -> list[JournalRecord]:
        return Journal.open(self.path, now=lambda: NOON).after(0, 10_000)

    @asynccontextmanager
    async def running(self, *, green_fails: bool = False, epoch: int = 1) -> AsyncIterator[TargetLoop]:
        clients = Clients(self.traffic.bind(self.site(epoch)), green_fails)
        daemon = start_loop(
            rules(),
            home=self.home,
            engine=self.engine,
            traffic=self.traffic,
            epoch=epoch,
            sync=self.disk.sync,
            sensors=(clients,),
        )
        try:
            yield daemon.loop
        finally:
            assert not daemon.task.done(), daemon.task.exception()
            await daemon.stop()


def describe(record: JournalRecord) -> str:
    return f"{record['action']}{' late' if 'recorded_late' in record['after'] else ''}"


async def rolled_back_unwritten(loop: TargetLoop, place: Place) -> None:
    """The disk fills in the canary, and green is rolled back."""
    await approve(loop)
    await reach(loop, Phase.CANARY)
    place.disk.full = True
    await reach(loop, Phase.COOLDOWN)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@in_virtual_time
async def test_an_unwritable_journal_starts_nothing_and_ends_no_daemon(place: Place) -> None:
    async with place.running() as loop:
        await reach(loop, Phase.PROPOSED)
        place.disk.full = True
        with pytest.raises(JournalError, match="No space left"):
            await approve(loop)
        await asyncio.sleep(60)
        assert (loop.state.phase, loop.writable) == (Phase.PROPOSED, False)
        assert loop.last_step > asyncio.get_running_loop().time() - 2
        place.disk.full = False
        await approve(loop)
        await reach(loop, Phase.OBSERVING)
        assert loop.writable

    assert [what for what, _ in place.engine.calls] == ["preflight", "launch", "warm_up", "retire"]
    assert verify(place.path).ok


@in_virtual_time
async def test_recovers_by_itself_when_the_disk_has_space(place: Place) -> None:
    async with place.running() as loop:
        await reach(loop, Phase.PROPOSED)
        place.disk.full = True
        with pytest.raises(JournalError, match="No space left"):
            await approve(loop)
        place.disk.full = False
        await asyncio.sleep(3)
        assert loop.writable

    assert verify(place.path).ok


@in_virtual_time
async def test_a_rollback_runs_at_once_and_is_recorded_when_the_disk_has_space(place: Place) -> None:
    async with place.running(green_fails=True) as loop:
        await rolled_back_unwritten(loop, place)
        assert place.weights == {BLUE.name: 100}
        assert list(place.engine.servers) == [BLUE.name]
        assert place.disk.refused
        await asyncio.sleep(30)
        place.disk.full = False
        await asyncio.sleep(3)

    late = [describe(record) for record in place.records() if "recorded_late" in record["after"]]
    assert late[0] == "rollout.rolling_back late"
    assert late[-1] == "rollout.rolled_back late"
    last = place.records()[-1]
    assert last["state"] is not None
    assert last["state"]["phase"] in {"cooldown", "observing"}
    assert verify(place.path).ok


@in_virtual_time
async def test_an_abort_works_with_an_unwritable_journal(place: Place) -> None:
    async with place.running() as loop:
        await approve(loop)
        await reach(loop, Phase.CANARY)
        place.disk.full = True
        state = await loop.submit(e.Aborted(at=loop_now(), actor="ann", reason="the disk is full"))
        assert state.phase is Phase.ROLLING_BACK
        await reach(loop, Phase.COOLDOWN)
        place.disk.full = False
        await asyncio.sleep(3)

    late = [record for record in place.records() if "recorded_late" in record["after"]]
    assert late[0]["actor"]["id"] == "ann"
    assert "aborted by ann: the disk is full" in late[0]["why"]
    assert list(place.engine.servers) == [BLUE.name]


@in_virtual_time
async def test_a_failed_swap_restarts_blue_with_an_unwritable_journal(place: Place) -> None:
    place.engine.preflight_result = replace(
        place.engine.preflight_result, strategy="swap", why="one GPU", outage_s=40.0
    )

    async with place.running(green_fails=True) as loop:
        await rolled_back_unwritten(loop, place)
        assert place.weights == {BLUE.name: 100}
        assert list(place.engine.servers) == [BLUE.name]


@in_virtual_time
async def test_a_good_green_gains_no_share_while_the_journal_is_unwritable(place: Place) -> None:
    async with place.running() as loop:
        await approve(loop)
        await reach(loop, Phase.CANARY)
        before = place.weights.get("chat-r1", 0)
        place.disk.full = True
        for _ in range(50):
            await asyncio.sleep(1)
            assert place.weights.get("chat-r1", 0) <= max(before, 5)
        place.disk.full = False
        await reach(loop, Phase.OBSERVING, Phase.COOLDOWN)

    assert verify(place.path).ok


@in_virtual_time
async def test_a_crash_before_late_entries_are_recorded_recovers_consistently(place: Place) -> None:
    async with place.running(green_fails=True) as loop:
        await rolled_back_unwritten(loop, place)
    place.disk.full = False
    async with place.running(epoch=2) as loop:
        await asyncio.sleep(2)
        await reach(loop, Phase.OBSERVING, Phase.PROPOSED, Phase.COOLDOWN)
        await asyncio.sleep(5)
        assert place.traffic.bind(place.site(2)).weights_in_force == {BLUE.name: 100}

    assert list(place.engine.servers) == [BLUE.name]


@in_virtual_time
async def test_a_start_on_a_full_disk_waits_and_rejects_requests(place: Place) -> None:
    place.disk.full = True
    async with place.running() as loop:
        with pytest.raises(JournalError, match="cannot be recorded yet"):
            await loop.submit(e.Paused(at=loop_now(), actor="ann"))
        assert not place.traffic.calls
        place.disk.full = False
        await reach(loop, Phase.PROPOSED)

    assert place.records()[0]["action"] == "daemon.started"


def forward(record: JournalRecord) -> set[str]:
    """Steps covered by a record: `launch chat-r1`, `weight chat-r1 5`, `retire chat-r0`."""
    allowed = set()
    for effect in record["effects"]:
        if effect["kind"] == "route":
            allowed |= {f"weight {name} {weight}" for name, weight in effect["weights"].items()}
        elif effect["kind"] != "preflight":
            allowed.add(f"{effect['kind']} {effect['server']['name']}")
    return allowed


@pytest.mark.timeout(600)
@settings(max_examples=examples(80), deadline=None)
@given(
    fails=st.frozensets(st.integers(2, 40), max_size=25),
    outage=st.tuples(st.integers(0, 90), st.integers(0, 60)),
    green_fails=st.booleans(),
)
def test_any_write_failure_ends_consistently_and_forward_steps_are_recorded_first(
    fails: frozenset[int], outage: tuple[int, int], green_fails: bool
) -> None:
    with TemporaryDirectory() as home:
        place = Place(Path(home), Disk(fails=fails))
        in_no_time(_with_an_outage(place, outage, green_fails=green_fails))

        records = place.records()
        assert verify(place.path).ok
        first: dict[str, bool] = {}
        for record in records:
            late = "recorded_late" in record["after"]
            for what in forward(record):
                first.setdefault(what, late)
        for what, name in place.engine.calls:
            if what in {"launch", "retire"} and not (what == "retire" and name != BLUE.name):
                assert first.get(f"{what} {name}") is False
        for _, route in place.traffic.calls:
            if weight := route.weights.get("chat-r1"):
                assert first.get(f"weight chat-r1 {weight}") is False


async def _with_an_outage(place: Place, outage: tuple[int, int], *, green_fails: bool) -> None:
    start, seconds = outage
    async with place.running(green_fails=green_fails) as loop:
        for _ in range(50):
            with suppress(JournalError):
                await approve(loop)
                break
            await asyncio.sleep(1)
        await asyncio.sleep(start)
        place.disk.full = True
        await asyncio.sleep(seconds)
        place.disk.full = False
        await reach(loop, Phase.OBSERVING, Phase.PROPOSED, Phase.COOLDOWN)
        await asyncio.sleep(5)
        assert loop.state.fleet.blue is not None
        assert place.weights == {loop.state.fleet.blue.name: 100}
        assert list(place.engine.servers) == [loop.state.fleet.blue.name]


# rollback steps

BACK = State(
    target="chat",
    phase=Phase.ROLLING_BACK,
    fleet=Fleet(servers=(BLUE,)),
    split=Split(
        route=Route(
            number=1, servers=(BLUE, GREEN), weights={BLUE.name: 95, GREEN.name: 5}, fallback=BLUE.name
        )
    ),
    rollout=Canary(
        id="chat-1",
        suggestion=approved(),
        server=GREEN.name,
        greens=(GREEN,),
        replicas={BLUE.name: 1},
        plan=PLAN,
        started_at=NOON,
        phase_since=NOON,
    ),
)


def route(green: int) -> Route:
    weights = {BLUE.name: 100 - green, GREEN.name: green}
    return Route(number=2, servers=(BLUE, GREEN), weights=weights, fallback=BLUE.name)


def test_only_rollback_steps_are_taken_without_a_record() -> None:
    vacated = replace(BACK, fleet=replace(BACK.fleet, stopped=(BLUE.name,)))

    assert only_rolls_back(BACK, BACK, (route(0),))
    assert only_rolls_back(BACK, BACK, (Drain(number=2, server=GREEN, deadline_s=1),))
    assert only_rolls_back(BACK, BACK, (Retire(number=2, server=GREEN),))
    assert only_rolls_back(BACK, vacated, (Launch(number=2, server=BLUE, deadline_s=1),))
    assert not only_rolls_back(BACK, BACK, (route(6),))
    assert not only_rolls_back(BACK, BACK, (Retire(number=2, server=BLUE),))
    assert not only_rolls_back(BACK, BACK, (Launch(number=2, server=BLUE, deadline_s=1),))
    assert not only_rolls_back(BACK, BACK, (Launch(number=2, server=GREEN, deadline_s=1),))
    preflight = Preflight(number=2, servers=(BLUE,), setting={}, wanted="auto")
    assert not only_rolls_back(BACK, BACK, (route(0), preflight))
    assert not only_rolls_back(BACK, replace(BACK, phase=Phase.RESTORING), ())
    assert only_rolls_back(BACK, replace(BACK, phase=Phase.COOLDOWN), ())
    assert not only_rolls_back(replace(BACK, phase=Phase.OBSERVING), replace(BACK, phase=Phase.COOLDOWN), ())


def test_late_entries_are_bounded_and_the_newest_state_is_kept() -> None:
    late, at = Backlog(), NOON
    for number in range(MAX_ENTRIES + 10):
        late.add(JournalEntry(at=at, actor=DAEMON, action="effect.failed", why=str(number)))
    whys = []
    while (first := late.next_entry(at)) is not None:
        whys.append((first.why, first.after.get("steps_left_out")))
        late.drop_first()

    assert len(whys) == MAX_ENTRIES
    assert whys[0] == ("0", None)
    assert whys[-1] == (str(MAX_ENTRIES + 9), "10")
