"""A swap of a process that sleeps beside green, under load, with servers on a GPU that they claim to have."""

import asyncio
import os
import sys
from dataclasses import dataclass
from json import dumps
from pathlib import Path

import pytest

from flettner.actuators.host import procfs
from flettner.actuators.process.address import find_listen_address
from flettner.simulator.traffic import TrafficGenerator
from flettner.vllm_facts.closed_routes import DEV_MODE
from tests.e2e.conftest import Start
from tests.support.claimed_gpu import sleeps
from tests.support.config_builder import QUICK, SERVER, SERVERS, SiteConfig
from tests.support.rig import Document, Rig, lost, until

pytestmark = pytest.mark.timeout(180)

# 4 GiB, of which a server that is awake takes 3.7.
SMI = """#!{python}
from urllib.request import urlopen

used = 0
for port in range({first}, {last} + 1):
    try:
        with urlopen(f"http://127.0.0.1:{{port}}/is_sleeping", timeout=5) as answer:
            used += 64 if b"true" in answer.read() else 3770
    except OSError:
        pass
print(f"0, GPU-1, {{used}}, 0, 4096, [N/A]")
"""


@dataclass(frozen=True, kw_only=True)
class SleepSiteConfig(SiteConfig):
    def engine(self) -> str:
        faults = [word for fault in self.faults for word in ("--sim-fault", fault)]
        return f"""
            kind = "process"
            strategy = "swap"
            command = {dumps([*SERVER, *QUICK, "--enable-sleep-mode", *faults])}
            env = {{ {DEV_MODE} = "1" }}
            ports = [{SERVERS[0]}, {SERVERS[-1]}]
            health_every_s = 0.5
            lost_after = {self.lost_after}
            health_timeout_s = 1.0
            stop_s = 2.0
        """


@pytest.fixture(autouse=True)
def _gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI.format(python=sys.executable, first=SERVERS[0], last=SERVERS[-1]))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)


async def serving(site: Start, *faults: str) -> Rig:
    rig = await site(SleepSiteConfig(waits_s=60.0, faults=faults, steps=((50, 20, 0.5),)))
    await rig.serving()
    return rig


async def swap(rig: Rig, *, crash: bool = False) -> tuple[Document, Document, TrafficGenerator]:
    """Swap under load; return the suggestion, the rollout and the load. `crash`: of the daemon, meanwhile."""
    async with rig.clients(rate=10.0, timeout_s=90.0) as traffic:
        made = await rig.propose(max_num_seqs=16)
        await rig.approve(made)
        if crash:
            address = str(find_listen_address(procfs.words(rig.pid("chat-r1"))))
            await until(lambda: sleeps(address), bool, "chat-r1 to sleep")
            await rig.kill()
            await asyncio.sleep(1.0)
            await rig.start()
        rollout = await rig.ended(str(made["id"]))
    assert made["preflight"]["strategy"] == "swap", made
    return made, rollout, traffic


@pytest.mark.smoke
async def test_a_promoted_swap_refuses_no_request_and_ends_the_sleeping_server(site: Start) -> None:
    rig = await serving(site)

    made, rollout, traffic = await swap(rig)

    notes = " ".join(made["notes"])
    assert "chat-r1 sleeps meanwhile, and a rollback wakes it in seconds" in notes
    assert "new requests wait in the proxy, at most 60 s each" in notes
    assert (rollout["outcome"], rollout["lost"]) == ("promoted", 0), rollout["why"]
    assert lost(traffic) == []
    assert await rig.consistent_server() == "chat-r2"
    assert rig.named_in_journal("chat-r1 sleeps: 3.9 GiB of GPU memory are free")


BAD = "max_num_seqs=16:errors=0.8"


async def rolled_back(site: Start, *faults: str, crash: bool = False) -> tuple[bool, set[str]]:
    """Whether the process that slept serves again, and how requests failed that green did not get."""
    rig = await serving(site, BAD, *faults)
    before = rig.pid("chat-r1")

    _, rollout, traffic = await swap(rig, crash=crash)

    assert rollout["outcome"] == "rolled_back", rollout["why"]
    assert await rig.consistent_server() == "chat-r1"
    return rig.pid("chat-r1") == before, {record.why for record in lost(traffic)}


async def test_a_rollback_wakes_the_server_that_slept(site: Start) -> None:
    assert await rolled_back(site) == (True, {"HTTP 500"})


async def test_a_server_that_does_not_wake_is_started_again(site: Start) -> None:
    assert await rolled_back(site, "*:wake_fails") == (False, {"HTTP 500"})


async def test_a_daemon_that_is_killed_while_it_sleeps_changes_nothing(site: Start) -> None:
    assert await rolled_back(site, crash=True) == (True, {"HTTP 500"})
