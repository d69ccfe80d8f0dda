"""Reloading the config: all of it or nothing, between two steps, after a running rollout."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from flettner.agent.audit.history import History
from flettner.agent.audit.journal import Journal
from flettner.agent.config import loader
from flettner.agent.config.loader import Config
from flettner.agent.config.notify import Receiver
from flettner.agent.domain import events as e
from flettner.agent.domain.errors import ConfigError, JournalError, RestartNeededError
from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.state import Phase
from flettner.agent.notify.delivery import NoticeDelivery
from flettner.agent.runtime.config_reload import ConfigReload
from flettner.agent.runtime.daemon import Daemon
from flettner.agent.runtime.loop import NextRules, TargetLoop
from flettner.agent.runtime.wiring import build_changed_deliveries, build_next_rules
from tests.support.fake_engine import FakeEngine
from tests.support.fake_traffic import FakeTraffic
from tests.support.fast_time import in_virtual_time, loop_now
from tests.support.machine_stories import BLUE, rules
from tests.support.running_loop import start_loop
from tests.unit.scenarios.test_loop import approve, reach, running

CONFIG = """
[agent]
state_dir = "state"
mode = "approve"
[[targets]]
name = "chat"
[targets.engine]
kind = "process"
serving = "http://127.0.0.1:8000"
[targets.slo]
ttft = { under = "1s" }
"""
STRICT = Slo(ttft=Objective(under_s=0.05, share=0.99))


@dataclass
class Place:
    """A daemon with one idle loop, and the file that it reloads."""

    daemon: Daemon
    loop: TargetLoop
    file: Path
    started: list[str] = field(default_factory=list)

    def write(self, text: str) -> None:
        self.file.write_text(text)

    @property
    def config(self) -> ConfigReload:
        assert self.daemon.config
        return self.daemon.config

    def entries(self, action: str) -> list[Any]:
        return [record for record in self.daemon.journal.after(0, 99) if record["action"] == action]


@asynccontextmanager
async def place(home: Path) -> AsyncIterator[Place]:
    file = home / "flettner.toml"
    file.write_text(CONFIG)

    def load() -> Config:
        return loader.load_config(file)

    config = load()
    started = build_next_rules("approve", config, "")["chat"].rules
    made = start_loop(started, home=home, engine=FakeEngine(BLUE), traffic=FakeTraffic(), sensors=())

    def no_deliveries(*_: object) -> Sequence[NoticeDelivery]:
        return ()

    daemon = Daemon(loops={"chat": made.loop}, journal=made.journal, history=History())
    daemon.config = ConfigReload(
        config=config,
        load=load,
        rules=lambda config, actor: build_next_rules("approve", config, actor),
        deliveries=no_deliveries,
        journal=made.journal,
        now=loop_now,
    )
    await reach(made.loop, Phase.OBSERVING)
    try:
        yield Place(daemon, made.loop, file)
    finally:
        await made.stop()


@in_virtual_time
async def test_a_changed_file_is_in_force_for_all_who_use_it_and_audited(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        at.write(CONFIG.replace('"approve"', '"auto"').replace('"1s"', '"2s"'))
        report = await at.daemon.reload("alice")
        await asyncio.sleep(2)

        assert [change.key for change in report.changes] == ["agent.mode", "targets.chat.slo.ttft.under"]
        assert report.waiting == ()
        assert at.loop.slo.ttft == at.loop.aggregator.slo.ttft == Objective(under_s=2.0, share=0.95)
        assert at.loop.state.mode == "auto"
        (entry,) = at.entries("config.reloaded")
        assert entry["actor"]["id"] == "alice"
        assert entry["before"] == {"agent.mode": "approve", "targets.chat.slo.ttft.under": 1.0}
        assert entry["after"] == {"agent.mode": "auto", "targets.chat.slo.ttft.under": 2.0}
        assert [entry["actor"]["id"] for entry in at.entries("target.reconfigured")] == ["alice"]


@in_virtual_time
async def test_an_unchanged_file_changes_and_records_nothing(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        report = await at.daemon.reload("alice")
        await asyncio.sleep(2)

        assert (report.changes, report.waiting) == ((), ())
        assert not at.entries("config.reloaded")
        assert not at.entries("target.reconfigured")


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        ("mode = ", ConfigError, "not TOML"),
        (CONFIG.replace('"1s"', '"soon"'), ConfigError, "must be a duration"),
        (CONFIG.replace("8000", "8001").replace('"1s"', '"2s"'), RestartNeededError, "engine.serving"),
        (CONFIG.replace('"approve"', '"advise"').replace('"1s"', '"2s"'), RestartNeededError, "agent.mode"),
        (CONFIG.replace('"chat"', '"talk"'), RestartNeededError, "targets.chat, targets.talk"),
    ],
)
def test_a_refused_file_changes_nothing_and_is_said_until_one_is_taken(
    tmp_path: Path, text: str, error: type[ConfigError], why: str
) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with place(tmp_path) as at:
            rules_before = at.loop.machine.rules
            at.write(text)
            with capture_logs() as logs, pytest.raises(error, match=why) as raised:
                await at.daemon.reload("alice")
            await asyncio.sleep(2)

            assert type(raised.value) is error
            assert at.loop.machine.rules is rules_before
            assert not at.entries("config.reloaded")
            assert [why in line["why"] for line in logs if line["event"] == "config.not_reloaded"] == [True]
            assert why in at.daemon._summary()
            assert not at.daemon.counters()["config_last_reload_successful"]
            at.write(CONFIG)
            await at.daemon.reload("alice")
            assert at.daemon.counters()["config_last_reload_successful"]

    scenario()


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "large"])
def test_what_is_no_plain_file_is_refused_at_once_and_keeps_no_later_reload_waiting(
    tmp_path: Path, kind: str
) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with place(tmp_path) as at:
            at.file.unlink()
            match kind:
                case "fifo":
                    os.mkfifo(at.file)
                case "device":
                    at.file.symlink_to("/dev/zero")
                case "folder":
                    at.file.mkdir()
                case _:
                    with at.file.open("wb") as sparse:
                        sparse.truncate(1 << 30)
            with pytest.raises(ConfigError, match="cannot be read"):
                await at.daemon.reload("alice")
            with pytest.raises(ConfigError, match="cannot be read"):
                loader.find_policies_dir(at.file)
            at.file.rmdir() if kind == "folder" else at.file.unlink()
            at.write(CONFIG.replace('"1s"', '"2s"'))

            assert len((await at.daemon.reload("alice")).changes) == 1

    scenario()


@in_virtual_time
async def test_credentials_are_reloaded_also_with_an_invalid_file(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        reloaded: list[str] = []
        at.daemon.reload_credentials = lambda: reloaded.append("tokens")
        at.write("mode = ")
        await at.daemon._reload_for_signal()

        assert reloaded == ["tokens"]


@in_virtual_time
async def test_nothing_is_reloaded_that_cannot_be_journalled(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        rules_before = at.loop.machine.rules
        at.write(CONFIG.replace('"1s"', '"2s"'))
        at.daemon.journal.close()
        with pytest.raises((JournalError, OSError, ValueError)):
            await at.daemon.reload("alice")

        assert at.loop.machine.rules is rules_before
        assert at.config.config.targets[0].slo.ttft == Objective(under_s=1.0, share=0.95)


@in_virtual_time
async def test_a_running_rollout_ends_under_the_rules_of_its_approval(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE, takes_s=3), FakeTraffic()
    wanted = NextRules(rules=replace(rules(), slo=STRICT), mode="auto", approval="any", actor="alice")

    async with running(tmp_path, engine, traffic) as loop:
        before = loop.slo
        await approve(loop)
        await reach(loop, Phase.CANARY)
        loop.reconfigure(wanted)
        slos = set()
        while loop.state.phase not in {Phase.OBSERVING, Phase.COOLDOWN}:
            slos.add((loop.slo, loop.aggregator.slo, loop.state.mode, loop.awaits_rules))
            await asyncio.sleep(0.5)
        await asyncio.sleep(2)

        assert slos == {(before, before, "approve", True)}
        assert loop.state.rollout is not None
        assert loop.state.rollout.outcome == "promoted"
        assert (loop.slo, loop.aggregator.slo, loop.state.mode) == (STRICT, STRICT, "auto")
        assert not loop.awaits_rules


@in_virtual_time
async def test_an_approval_behind_a_reload_carries_out_nothing_of_the_earlier_rules(tmp_path: Path) -> None:
    engine, traffic = FakeEngine(BLUE, takes_s=3), FakeTraffic()

    async with running(tmp_path, engine, traffic) as loop:
        await reach(loop, Phase.PROPOSED)
        shown = loop.state.suggestions.open[0]
        loop.reconfigure(
            NextRules(rules=replace(rules(), restart_after_s=9.0), mode="approve", approval="any")
        )
        await loop.submit(e.Approved(at=loop_now(), actor="alice", suggestion=shown.id, digest=shown.digest))

        assert loop.state.phase in {Phase.OBSERVING, Phase.CHECKING}
        assert loop.state.rollout is None
        ended = [
            suggestion["status"]
            for record in Journal.open(tmp_path / "audit.jsonl", now=loop_now).after(0, 99)
            if record["action"] == "target.reconfigured"
            for suggestion in (record["state"] or {})["suggestions"]["ended"]
        ]
        assert ended == ["superseded"]


def test_only_deliveries_of_changed_receivers_are_built_again(tmp_path: Path) -> None:
    def config(*urls: str, public: str = "") -> Config:
        text = CONFIG + "".join(
            f'[[notify]]\nkind = "slack"\nname = "n{number}"\nurl_file = "{url}"\n'
            for number, url in enumerate(urls)
        )
        api = f'[api]\npublic_url = "{public}"\n' if public else ""
        return loader.parse_config(api + text, here=tmp_path)

    @dataclass
    class Delivery:
        name: str

    def build(_: Config, receiver: Receiver) -> Any:  # noqa: ANN401 - a stand-in
        return Delivery(receiver.name)

    running_: list[Any] = [Delivery("n0"), Delivery("n1")]
    before = config("a", "b")
    after = config("a", "c", "d")

    first, second, third = build_changed_deliveries(build, before, after, running_)

    assert first is running_[0]
    assert (second.name, third.name) == ("n1", "n2")
    assert second is not running_[1]
    linked = build_changed_deliveries(build, before, config("a", public="https://x"), running_)
    assert linked[0] is not running_[0]


@in_virtual_time
async def test_the_daemon_ends_replaced_deliveries_and_starts_new_ones(tmp_path: Path) -> None:
    @dataclass(eq=False)
    class Delivery:
        name: str
        log: list[str]

        async def run(self) -> None:
            self.log.append(f"{self.name} runs")
            try:
                await asyncio.sleep(1e6)
            finally:
                self.log.append(f"{self.name} ends")

    log: list[str] = []
    kept, old, new = (Delivery(name, log) for name in ("kept", "old", "new"))
    journal = Journal.open(tmp_path / "audit.jsonl", now=loop_now)
    daemon = Daemon(loops={}, journal=journal, history=History())
    async with daemon._tasks:
        daemon.deliver([kept, old])  # type: ignore[list-item]
        await asyncio.sleep(1)
        daemon.deliver([kept, new])  # type: ignore[list-item]
        await asyncio.sleep(1)
        daemon.deliver(daemon.deliveries)
        await asyncio.sleep(1)
        assert sorted(log) == ["kept runs", "new runs", "old ends", "old runs"]
        daemon.deliver([])
    journal.close()

    assert sorted(log[4:]) == ["kept ends", "new ends"]
