"""A daemon under constant load: memory over time, CPU, growth of the journal, lost requests.

    python -m bench.capacity.soak [--minutes 10] [--rate 30]

One target with a real Envoy and a simulated server. Prints a line each minute, writes
bench/results/capacity_soak.json, and exits 1 if a request was lost.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.capacity.site import CapacitySite, running
from bench.results import new_parser, write

EVERY_S = 10.0


async def soak(minutes: float, rate: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fl") as folder:
        async with running(Path(folder), 1, rate) as site:
            samples = await _sample(site, minutes * 60)
        counts = site.counts()
    first, last = samples[0], samples[-1]
    took_s = last["at_s"] - first["at_s"]
    settled = samples[len(samples) // 2 :]
    return {
        "minutes": round(took_s / 60, 2),
        "rate": rate,
        "requests": counts,
        "sent_per_s": round(counts["sent"] / took_s, 1),
        "lost": counts["sent"] - counts["ok"],
        "cpu_percent": round(100 * (last["cpu_s"] - first["cpu_s"]) / took_s, 2),
        "rss_mib": {"start": first["rss_mib"], "half": settled[0]["rss_mib"], "end": last["rss_mib"]},
        "envoy_rss_mib": {"start": first["envoy_rss_mib"], "end": last["envoy_rss_mib"]},
        "journal": {
            "entries": last["entries"] - first["entries"],
            "bytes": last["journal_bytes"] - first["journal_bytes"],
        },
        "samples": samples,
    }


async def _sample(site: CapacitySite, seconds: float) -> list[dict[str, float]]:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    samples = []
    while True:
        look = await site.look()
        samples.append(
            {
                "at_s": round(look.at_s - began_s, 1),
                "cpu_s": look.daemon.cpu_s,
                "rss_mib": round(look.daemon.rss_mib, 1),
                "envoy_rss_mib": round(look.envoy.rss_mib, 1),
                "journal_bytes": site.journal_bytes(),
                "entries": await site.entries(),
            }
        )
        if len(samples) % 6 == 1:
            print({**samples[-1], **site.counts()}, flush=True)
        if clock() - began_s >= seconds:
            return samples
        await asyncio.sleep(min(EVERY_S, began_s + seconds - clock()))


def main() -> int:
    parser = new_parser("bench.capacity.soak", __doc__, "capacity_soak.json")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=30.0, help="requests/s")
    options = parser.parse_args()
    report = asyncio.run(soak(options.minutes, options.rate))
    write(options.json, report)
    print(json.dumps({key: value for key, value in report.items() if key != "samples"}, indent=2))
    return int(report["lost"] > 0)


if __name__ == "__main__":
    sys.exit(main())
