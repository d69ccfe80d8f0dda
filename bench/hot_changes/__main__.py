"""Change the cap of real vLLM between 2 and 16 under 16 streams through Envoy, kill the daemon, kill vLLM.

1. The same prompts at a cap of 2, for the tokens to compare with.
2. A trial of 16: the daemon is killed while it is in force. The lease brings 2 back.
3. Without a daemon, the engine port changes the cap up and down. The times are those from its call until
   `applied` shows that a step of the engine has used the value, and until as many requests run as it allows.
4. A daemon again, and a trial of 16 to its end. Then vLLM is killed; the new server has the value that was
   kept.

What is found is written after each step.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import aiohttp

from bench.hot_changes.streams import STREAMS, Streams
from bench.results import new_parser, write
from flettner.actuators.process.plugin import ProcessPlugin
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.agent.machine.hot_trial import LEASE_S
from flettner.simulator.traffic import Load
from tests.support.config_builder import SERVERS, TARGET
from tests.support.hot_site import LIMITS, HotSiteConfig, cap, knobs
from tests.support.real_vllm import ENVIRONMENT, REPOSITORY, real_vllm
from tests.support.rig import Rig, lost, until

CHANGES = 30
LOW, HIGH = 2, 16
KNOB = "max_num_active_seqs"
EPOCH = 1000  # above that of every daemon of the bench
START_S = 900.0
REFERENCE_S = 20.0
SETTLED_S = 20.0  # a daemon that starts reads what Envoy recorded while there was none


def main() -> int:
    parser = new_parser("bench.hot_changes", __doc__, "hot_changes.json")
    parser.add_argument("--changes", type=int, default=CHANGES, help="number of changes of step 4")
    options = parser.parse_args()
    asyncio.run(measure(options.changes, options.json))
    print(options.json.read_text())
    return 0


async def measure(changes: int, results: Path) -> None:
    with TemporaryDirectory() as folder, TemporaryDirectory() as home:
        env = (*ENVIRONMENT.items(), ("PYTHONPATH", str(REPOSITORY)))
        config = HotSiteConfig(
            folder=folder,
            command=real_vllm().command(*LIMITS),
            env=env,
            start_s=START_S,
            ttft="2s",
            stalled_after_s=60.0,
            at_most_s=1500.0,
        )
        rig = Rig(home=Path(home), site_config=config, patience_s=1500)
        rig.prepare()
        begun_s, report = perf_counter(), dict[str, Any]()

        def add(name: str, value: object) -> None:
            report[name], report["seconds"] = value, _since(begun_s)
            write(results, report)

        await rig.start()
        try:
            await until(lambda: cap(config), LOW.__eq__, "vLLM", START_S)
            await rig.serving()
            add("seconds to the first server", _since(begun_s))
            streams = Streams(rig.url)
            async with streams.running():
                await asyncio.sleep(REFERENCE_S)
            add("daemon killed in a trial", await kill_daemon(rig, config))
            add("changes", await change(rig, config, streams, changes))
            await rig.start()
            await rig.serving()
            await asyncio.sleep(SETTLED_S)
            add("a trial to its end", await keep(rig))
            add("vLLM killed", await kill_server(rig, config))
        finally:
            await rig.tear_down()


async def kill_daemon(rig: Rig, config: HotSiteConfig) -> dict[str, Any]:
    async with rig.clients(load=Load(streams=STREAMS), timeout_s=600) as traffic:
        await rig.change(**{KNOB: HIGH})
        await until(lambda: cap(config), HIGH.__eq__, "the new value", 300)
        await rig.kill()
        killed_s = perf_counter()
        await until(lambda: cap(config), LOW.__eq__, "the end of the lease")
        back_s = _since(killed_s)
    return {
        "back after s": back_s,
        "lease s": LEASE_S,
        "requests": len(traffic.tally.records),
        "lost": len(lost(traffic)),
    }


async def keep(rig: Rig) -> dict[str, Any]:
    begun_s = perf_counter()
    async with rig.clients(load=Load(streams=STREAMS), timeout_s=600) as traffic:
        rollout = await rig.switch(**{KNOB: HIGH})
    return {
        "trial": rollout["outcome"],
        "why": rollout["why"],
        "seconds": _since(begun_s),
        "requests": len(traffic.tally.records),
        "lost": len(lost(traffic)),
    }


async def kill_server(rig: Rig, config: HotSiteConfig) -> dict[str, Any]:
    """Kill vLLM with SIGKILL; the daemon starts another one."""
    (before,) = rig.processes()
    killed_s = perf_counter()
    os.kill(rig.pid(before), signal.SIGKILL)

    async def cap_of_other() -> int:
        names = [name for name in rig.processes() if name != before]
        return await cap(config, names[0]) if names else 0

    seen = await until(cap_of_other, bool, "another server", START_S)
    await rig.serving()
    return {"cap of the new server": seen, "serves after s": _since(killed_s)}


async def change(rig: Rig, config: HotSiteConfig, streams: Streams, changes: int) -> dict[str, Any]:
    """Change the limits without a daemon, so that nothing else sets values; Envoy and vLLM outlive it."""
    site = Site(target=TARGET, state_dir=rig.marked, epoch=EPOCH)
    engine = ProcessPlugin(command=config.command, ports=(SERVERS[0], SERVERS[-1])).bind(site)
    (server,) = await engine.observe()
    applied: dict[int, list[float]] = {LOW: [], HIGH: []}
    running: dict[int, list[float]] = {LOW: [], HIGH: []}
    async with streams.running(), aiohttp.ClientSession() as session:
        for number in range(1, changes + 1):
            wanted = HIGH if number % 2 else LOW
            begun_s = perf_counter()
            await engine.set_knobs(server, {KNOB: wanted}, (EPOCH, number))
            await until(partial(_applied, config, server), [EPOCH, number].__eq__, "a step with it")
            applied[wanted].append(_since(begun_s))
            reached = (LOW).__ge__ if wanted == LOW else (HIGH // 2).__le__
            await until(partial(_running, session, server), reached, "as many requests")
            running[wanted].append(_since(begun_s))
    return {
        "changes": changes,
        "a step has used the value, s": _quantiles([*applied[LOW], *applied[HIGH]]),
        f"at most {LOW} run, s": _quantiles(running[LOW]),
        f"{HIGH // 2} run, s": _quantiles(running[HIGH]),
        "requests": streams.outcomes.total(),
        "outcomes": dict(streams.outcomes),
    }


async def _applied(config: HotSiteConfig, server: Server) -> object:
    return (await knobs(config, server.name)).get("applied")


async def _running(session: aiohttp.ClientSession, server: Server) -> int:
    async with session.get(f"http://{server.address}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    counts = (float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))
    return round(sum(counts))


def _since(begun_s: float) -> float:
    return round(perf_counter() - begun_s, 3)


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    last = len(ordered) - 1
    return {"median": ordered[last // 2], "p95": ordered[round(0.95 * last)], "most": ordered[last]}


if __name__ == "__main__":
    sys.exit(main())
