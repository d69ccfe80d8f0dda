"""What 16 requests of one viewer for the largest page of the audit cost: memory, and another client's wait.

    python -m bench.audit_reads [--entries N] [--entry-kib K]

A process serves the API over a real journal of N entries of K KiB. Writes bench/results/audit_reads.json.
"""

import asyncio
import json
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path

from aiohttp import ClientError, ClientSession

from bench.journal_append import ENTRY, NOON
from bench.results import new_parser, write
from flettner.agent.api.app import build_app
from flettner.agent.api.server import serve
from flettner.agent.api.tokens import Tokens
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.offsets import SLICE_BYTES
from flettner.agent.config.listen import Role
from flettner.agent.domain.model import Evidence
from flettner.primitives.address import Address
from tests.support.api_tokens import store_roles
from tests.support.fake_daemon_view import FakeDaemonView

READERS = 16
EVERY_S = 0.02  # between two requests of the other client
EVIDENCE_BYTES = 63  # of one row of evidence in a line


@dataclass
class JournalView(FakeDaemonView):
    """A daemon that answers from a real journal."""

    journal: Journal | None = field(default=None)

    def records(self, after: int, limit: int) -> Sequence[Mapping[str, object]]:
        if self.journal is None:
            return ()
        return self.journal.after(after, limit, SLICE_BYTES)


def write_journal(path: Path, entries: int, entry_kib: int) -> None:
    journal = Journal.open(path, now=lambda: NOON, sync=lambda _: None)
    rows = entry_kib * 1024 // EVIDENCE_BYTES
    evidence = tuple(
        Evidence(metric=f"m{row}", value=row / 7, unit="s", window_s=60.0) for row in range(rows)
    )
    for _ in range(entries):
        journal.append(replace(ENTRY, evidence=evidence))
    journal.close()


def rss_mib(key: str) -> float:
    """`VmRSS` or `VmHWM`, the largest so far, of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) / 1024


def serve_journal(path: Path, tokens: Path, pipe: Connection) -> None:
    """Serve until the parent sends something; send the port, then the memory before and at the peak."""

    async def main() -> None:
        journal = Journal.open(path, now=lambda: NOON)
        app = build_app(JournalView(journal=journal), Tokens(tokens, lambda: NOON))
        runner = await serve(app, Address("127.0.0.1", 0))
        before = rss_mib("VmRSS")
        pipe.send(runner.addresses[0][1])
        await asyncio.to_thread(pipe.recv)
        pipe.send((before, rss_mib("VmHWM"), time.process_time()))
        await runner.cleanup()

    asyncio.run(main())


async def ask(port: int, bearers: Mapping[Role, str]) -> tuple[Counter[int], list[int], list[float], float]:
    """Return the statuses and bytes of the answers, the other client's waits, and the time until the last."""
    waits: list[float] = []
    url = f"http://127.0.0.1:{port}"

    async def other() -> None:
        async with ClientSession(headers={"Authorization": bearers["operator"]}) as session:
            while True:
                began = time.perf_counter()
                async with session.get(f"{url}/v1/targets") as response:
                    await response.read()
                waits.append(time.perf_counter() - began)
                await asyncio.sleep(EVERY_S)

    async def reader(session: ClientSession) -> tuple[int, int]:
        size = 0
        try:
            async with session.get(f"{url}/v1/audit?limit=1000") as response:
                async for part in response.content.iter_any():
                    size += len(part)
        except ClientError:
            return 0, size  # cut off
        return response.status, size

    watching = asyncio.create_task(other())
    await asyncio.sleep(1.0)
    began = time.perf_counter()
    async with ClientSession(headers={"Authorization": bearers["viewer"]}) as session:
        answers = await asyncio.gather(*(reader(session) for _ in range(READERS)))
    took_s = time.perf_counter() - began
    await asyncio.sleep(0.5)
    watching.cancel()
    return Counter(status for status, _ in answers), [size for _, size in answers], waits, took_s


def main() -> None:
    parser = new_parser("bench.audit_reads", __doc__, "audit_reads.json")
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--entry-kib", type=int, default=30)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, tokens = Path(folder) / "audit.jsonl", Path(folder) / "tokens"
        write_journal(path, args.entries, args.entry_kib)
        size = sum(file.stat().st_size for file in Path(folder).glob("audit*.jsonl"))
        texts = store_roles(tokens)
        ours, theirs = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(
            target=serve_journal, args=(path, tokens, theirs)
        )
        server.start()
        bearers = {role: f"Bearer {text}" for role, text in texts.items()}
        statuses, sizes, waits, took_s = asyncio.run(ask(ours.recv(), bearers))
        ours.send("stop")
        before, peak, cpu_s = ours.recv()
        server.join()
    report = {
        "entries": args.entries,
        "journal_mib": round(size / 2**20, 1),
        "readers": READERS,
        "statuses": {str(status): count for status, count in statuses.items()},
        "largest_answer_mib": round(max(sizes) / 2**20, 2),
        "until_the_last_answer_s": round(took_s, 2),
        "rss_mib": {"before": round(before, 1), "peak": round(peak, 1)},
        "cpu_s": round(cpu_s, 2),
        "other_client_wait_ms": {
            "median": round(sorted(waits)[len(waits) // 2] * 1e3, 1),
            "longest": round(max(waits) * 1e3, 1),
        },
    }
    print(json.dumps(report, indent=2))
    write(args.json, report)


if __name__ == "__main__":
    main()
