"""CPU and memory of one daemon by its number of targets and of the pods of each.

    python -m bench.capacity.replicas [--targets 10 50 200] [--pods 1 4] [--seconds 30] [--rate 0.5]

Without Envoys and without a cluster (bench.capacity.stand_ins). The daemon's CPU is that of one tick a second
of each target, also where a busy machine delays ticks; of the ticks 99 % are at most `p99 late` late, as far
as the edges of the daemon's histogram tell; `pages/s` are those that it read. Prints a line for each pair and
writes bench/results/capacity_replicas.json.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.capacity.pod_servers import count_sent
from bench.capacity.site import LISTEN, CapacityConfig, CapacitySite
from bench.results import new_parser, write
from tests.support.rig import Rig, until

API = 32_701  # bench.capacity.targets uses the port before it


async def measure(targets: int, pods: int, *, seconds: float, settle_s: float, rate: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fl") as folder:
        async with _running(Path(folder), targets, pods, rate) as site:
            await asyncio.sleep(settle_s)
            before, sent = await site.look(), await count_sent()
            await asyncio.sleep(seconds)
            after, sent = await site.look(), await count_sent() - sent
    took_s, ticks = after.at_s - before.at_s, after.ticks - before.ticks
    cpu_s = after.daemon.cpu_s - before.daemon.cpu_s
    return {
        "targets": targets,
        "pods": pods,
        "ticks_per_s": round(ticks.count / took_s, 2),
        "pages_per_s": round(sent / took_s, 1),
        "late_s": ticks.late_s(0.99),
        "tick_ms": round(1000 * cpu_s / ticks.count, 2),
        "cpu_percent": round(100 * targets * cpu_s / ticks.count, 1),
        "rss_mib": round(after.daemon.rss_mib, 1),
    }


@asynccontextmanager
async def _running(home: Path, targets: int, pods: int, rate: float) -> AsyncIterator[CapacitySite]:
    rig = Rig(home=home, site_config=CapacityConfig(targets=targets), api=API, listen=LISTEN)
    rig.prepare()
    servers = await _start("bench.capacity.pod_servers", home / "pods.log")
    rig.daemon = await _start(
        "bench.capacity.stand_ins", home / "daemon.log", str(rig.config), str(pods), str(rate)
    )
    try:
        await until(lambda: _started(rig), targets.__eq__, "all targets", 120.0)
        yield CapacitySite(rig=rig, clients=[])
    finally:
        for process in (rig.daemon, servers):
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _start(module: str, log: Path, *arguments: str) -> asyncio.subprocess.Process:
    with log.open("wb") as file:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments, stdout=file, stderr=file
        )


async def _started(rig: Rig) -> int:
    """Return how many targets have a reading."""
    assert rig.daemon is not None
    assert rig.daemon.returncode is None, rig.log()[-2000:]
    status, document = await rig.ask("GET", "/v1/targets")
    targets = document["targets"] if status == 200 else ()  # noqa: PLR2004 - HTTP
    return sum(target["reading"] is not None for target in targets)


def main() -> None:
    parser = new_parser("bench.capacity.replicas", __doc__, "capacity_replicas.json")
    parser.add_argument("--targets", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--pods", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--settle", type=float, default=35.0, help="seconds before: the window of a reading")
    parser.add_argument("--rate", type=float, default=0.5, help="requests/s of each target")
    options = parser.parse_args()
    print("targets  pods  ticks/s  pages/s  p99 late s  tick ms  CPU %    MiB", flush=True)
    runs = []
    for targets in options.targets:
        for pods in options.pods:
            run = asyncio.run(
                measure(targets, pods, seconds=options.seconds, settle_s=options.settle, rate=options.rate)
            )
            runs.append(run)
            print(
                f"{targets:>7} {pods:>5} {run['ticks_per_s']:>8} {run['pages_per_s']:>8}"
                f" {run['late_s']:>11} {run['tick_ms']:>8} {run['cpu_percent']:>6} {run['rss_mib']:>6}",
                flush=True,
            )
    write(options.json, {"rate": options.rate, "runs": runs})


if __name__ == "__main__":
    main()
