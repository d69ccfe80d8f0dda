"""Who may act, by the rules of a Lease, in virtual time."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pytest

from flettner.actuators.kubernetes.lease import DEADLINE_S, DURATION_S, RENEW_S, WAIT_S, LeaseLock
from flettner.agent.domain.errors import LockLostError
from flettner.clients.kubernetes.client import KubernetesClient
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import AwayError, ConflictError
from tests.support.fast_time import in_no_time, loop_now


class FakeLeases:
    """The API server's part: conditional writes, and failures on demand."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.away = False
        self.hangs = False
        self.version = 0

    async def get(self, _: Any, _name: str) -> Json | None:  # noqa: ANN401
        await self._arrive()
        return deepcopy(self.lease)

    async def create(self, _: Any, body: Json) -> Json:  # noqa: ANN401
        await self._arrive()
        if self.lease is not None:
            raise ConflictError("exists")
        return self._store(body)

    async def patch(self, _: Any, _name: str, change: Json) -> Json:  # noqa: ANN401
        await self._arrive()
        assert self.lease is not None
        if change["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ConflictError("changed")
        return self._store(self.lease | {"spec": self.lease["spec"] | change["spec"]})

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease else ""

    def _store(self, body: Json) -> Json:
        self.version += 1
        self.lease = deepcopy(body) | {"metadata": {"resourceVersion": str(self.version)}}
        return deepcopy(self.lease)

    async def _arrive(self) -> None:
        await asyncio.sleep(0.01)
        if self.hangs:
            await asyncio.sleep(1e6)
        if self.away:
            raise AwayError("the API server does not answer")


class Daemon:
    """Acts while it holds the Lease; `killed` leaves it as a crash does."""

    def __init__(self, leases: FakeLeases, name: str, log: list[tuple[float, str]]) -> None:
        self._lock = LeaseLock(client=cast("KubernetesClient", leases), name="flettner")
        self.name, self._log = name, log
        self.error = ""
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            async with self._lock.hold(Path(self.name), loop_now):
                self._log.append((asyncio.get_running_loop().time(), f"{self.name} acts"))
                try:
                    await asyncio.sleep(1e6)
                finally:
                    self._log.append((asyncio.get_running_loop().time(), f"{self.name} ends"))
        except LockLostError as error:
            self.error = str(error)

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@pytest.fixture(autouse=True)
def _named_by_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POD_UID", raising=False)


Log = list[tuple[float, str]]
Story = Callable[[FakeLeases, Log, AsyncExitStack], Any]


def log_of(story: Story) -> Log:
    """Return what happened when; the daemons end with the story."""

    async def play() -> Log:
        log: Log = []
        async with AsyncExitStack() as undo:
            await story(FakeLeases(), log, undo)
        return log

    return in_no_time(play())


def daemon(leases: FakeLeases, name: str, log: Log, undo: AsyncExitStack) -> Daemon:
    made = Daemon(leases, name, log)
    undo.push_async_callback(made.stop)
    return made


def test_a_second_daemon_acts_after_the_first_has_ended() -> None:
    async def story(leases: FakeLeases, log: Log, undo: AsyncExitStack) -> None:
        first = daemon(leases, "a", log, undo)
        await asyncio.sleep(1)
        daemon(leases, "b", log, undo)
        await asyncio.sleep(1000)
        log.append((0, f"held by {leases.holder.rpartition(':')[2]}"))
        await first.stop()
        await asyncio.sleep(WAIT_S + 1)

    log = log_of(story)

    assert [what for _, what in log][:4] == ["a acts", "held by a", "a ends", "b acts"]
    assert log[3][0] - log[2][0] <= WAIT_S + 1


def test_a_daemon_that_vanishes_is_succeeded_after_the_duration() -> None:
    async def story(leases: FakeLeases, log: Log, undo: AsyncExitStack) -> None:
        leases.lease = {
            "metadata": {"resourceVersion": "0"},
            "spec": {
                "holderIdentity": "gone",
                "leaseDurationSeconds": DURATION_S,
                "leaseTransitions": 4,
                "renewTime": "1970-01-01T00:00:00.000000Z",
            },
        }  # old by its node's clock, which is not asked
        daemon(leases, "b", log, undo)
        await asyncio.sleep(2 * DURATION_S)
        assert leases.lease["spec"]["leaseTransitions"] == 5

    [(at, what), *_] = log_of(story)

    assert what == "b acts"
    assert DURATION_S <= at <= DURATION_S + 2 * WAIT_S


def test_a_holder_that_cannot_renew_stops_before_another_may_act() -> None:
    async def story(leases: FakeLeases, log: Log, undo: AsyncExitStack) -> None:
        first = daemon(leases, "a", log, undo)
        await asyncio.sleep(17)
        leases.away = True
        await asyncio.sleep(DURATION_S)
        leases.away = False
        assert "could not be renewed for 35 s: the API server does not answer" in first.error

    [_, (at, what)] = log_of(story)

    assert what == "a ends"
    assert 17 - RENEW_S - 1 + DEADLINE_S <= at <= 17 + DEADLINE_S


def test_a_call_that_hangs_does_not_delay_that() -> None:
    async def story(leases: FakeLeases, log: Log, undo: AsyncExitStack) -> None:
        daemon(leases, "a", log, undo)
        await asyncio.sleep(17)
        leases.hangs = True
        await asyncio.sleep(DURATION_S)

    [_, (at, what)] = log_of(story)

    assert what == "a ends"
    assert at <= 17 + DEADLINE_S


def test_a_short_absence_of_the_api_server_changes_nothing() -> None:
    async def story(leases: FakeLeases, log: Log, undo: AsyncExitStack) -> None:
        daemon(leases, "a", log, undo)
        for _ in range(10):
            await asyncio.sleep(10)
            leases.away = True
            await asyncio.sleep(DEADLINE_S - RENEW_S - WAIT_S - 1)
            leases.away = False

    assert [what for _, what in log_of(story)] == ["a acts", "a ends"]


def test_a_holder_whose_lease_another_took_ends_at_the_next_renewal() -> None:
    async def story(leases: FakeLeases, log: Log, undo: AsyncExitStack) -> None:
        first = daemon(leases, "a", log, undo)
        await asyncio.sleep(12)
        assert leases.lease
        leases._store(leases.lease | {"spec": leases.lease["spec"] | {"holderIdentity": "b"}})
        await asyncio.sleep(RENEW_S + 1)
        assert "another daemon holds it: b" in first.error

    assert [what for _, what in log_of(story)] == ["a acts", "a ends"]


def test_two_that_start_at_once_do_not_both_act() -> None:
    async def story(leases: FakeLeases, log: Log, undo: AsyncExitStack) -> None:
        for name in "abcd":
            daemon(leases, name, log, undo)
        await asyncio.sleep(500)
        log.append((0, "the end"))

    log = [what for _, what in log_of(story)]

    assert len(log[: log.index("the end")]) == 1


def test_a_restarted_container_goes_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_UID", "of the pod")

    async def story(leases: FakeLeases, log: Log, undo: AsyncExitStack) -> None:
        leases.lease = {
            "metadata": {"resourceVersion": "0"},
            "spec": {"holderIdentity": "of the pod", "leaseDurationSeconds": DURATION_S},
        }
        daemon(leases, "a", log, undo)
        await asyncio.sleep(1)

    assert log_of(story)[0][1] == "a acts"
