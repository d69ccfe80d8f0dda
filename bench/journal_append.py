"""Time to append one entry to disk, and time to restart with a long journal.

    python -m bench.journal_append [--entries N] [--long N] [--dir DIR]

`--entries` are appended one by one; `--long` entries are written at once, in files of 16 MiB as the daemon
writes them, and then opened and verified.

Writes bench/results/journal_append.json. Put DIR on the disk that will hold the state directory.
"""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles

from bench.results import new_parser, write
from flettner.agent.audit.chain import verify
from flettner.agent.audit.history import History
from flettner.agent.audit.journal import OPENED, Journal
from flettner.agent.audit.records import DAEMON, GENESIS, JournalEntry, encode_line
from flettner.agent.audit.segments import RetentionLimits, segment_path
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import Evidence, Plan, Server, Step
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from tests.support.suggestions import MADE

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ARM = RequestCounts(total=500, ttft=tuple(range(82)), e2e=tuple(range(82)))
PLAN = Plan(
    steps=(Step(weight=5, requests=20, at_least_s=30.0, at_most_s=600.0),),
    start_s=900.0,
    warm_up_requests=20,
    warm_up_s=300.0,
    drain_s=120.0,
    lease_s=15.0,
)
ENTRY = JournalEntry(
    at=NOON,
    actor=DAEMON,
    action="rollout.step",
    target="chat",
    op_id="chat-1",
    why="step 1 of 3 passed: 212 requests, TTFT over 500 ms 1.2 % against 1.4 %",
    evidence=(Evidence(metric="ttft", value=0.31, unit="s", window_s=60.0),),
    epoch=3,
    state=State(
        target="chat",
        phase=Phase.CANARY,
        fleet=Fleet(servers=(Server(name="chat-r0", setting={"max_num_seqs": 4}, address="127.0.0.1:8101"),)),
        rollout=Canary(
            id="chat-1",
            suggestion=MADE,
            server="chat-r1",
            greens=(Server(name="chat-r1", setting={"max_num_seqs": 8}, address="127.0.0.1:8102"),),
            replicas={"chat-r0": 1},
            plan=PLAN,
            started_at=NOON,
            phase_since=NOON,
            green_counts=ARM,
            blue_counts=ARM,
            baseline=ARM,
            exposed=ARM,
        ),
    ),
)


def percentiles_ms(seconds: list[float]) -> dict[str, float]:
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {
        "p50": round(cuts[49] * 1e3, 3),
        "p99": round(cuts[98] * 1e3, 3),
        "max": round(max(seconds) * 1e3, 3),
    }


def append_all(path: Path, entries: int, sync: Callable[[int], None]) -> list[float]:
    journal = Journal.open(path, now=lambda: NOON, sync=sync)
    took = []
    for number in range(entries):
        start = time.perf_counter()
        journal.append(replace(ENTRY, op_id=f"chat-{number}"))
        took.append(time.perf_counter() - start)
    journal.close()
    return took


def long_journal(path: Path, entries: int) -> None:
    """Write a journal as the daemon does; all lines derive from one entry for speed."""
    state, plain = (
        encode_line(entry, seq=1, prev=GENESIS, boot_id="b", host="h")
        for entry in (replace(ENTRY, action=OPENED), ENTRY)
    )
    limit, size, first, prev = RetentionLimits().segment_bytes, 0, 1, GENESIS
    file = path.open("wb")
    for seq in range(1, entries + 1):
        if size >= limit:
            file.close()
            path.rename(segment_path(path, first))
            file, size, first = path.open("wb"), 0, seq
        line = numbered(plain if size else state, seq, prev)
        prev = json.loads(line)["hash"]
        size += file.write(line)
    file.close()


def numbered(line: bytes, seq: int, prev: str) -> bytes:
    """Return the entry with number `seq` and the hash `prev` of its predecessor."""
    old = json.loads(line)["hash"].encode()
    line = line.replace(b'"hash":"%s",' % old, b"", 1).replace(b'"seq":1,', b'"seq":%d,' % seq, 1)
    line = line.replace(b'"prev":"%s"' % GENESIS.encode(), b'"prev":"%s"' % prev.encode(), 1)
    new = hashlib.sha256(line[:-1]).hexdigest().encode()
    return line.replace(b'"host":', b'"hash":"%s","host":' % new, 1)


def restart(path: Path) -> dict[str, float]:
    """Return the seconds to read the last states, the history of the API, and to verify all entries."""
    start = time.perf_counter()
    journal = Journal.open(path, now=lambda: NOON)
    opened_s = time.perf_counter() - start
    start = time.perf_counter()
    History.of(journal)
    history_s = time.perf_counter() - start
    journal.close()
    start = time.perf_counter()
    result = verify(path)
    verified_s = time.perf_counter() - start
    if not (result.ok and result.entries == journal.head.seq):
        raise SystemExit(f"the long journal is not whole: {result}")
    return {
        "entries": result.entries,
        "bytes": sum(file.stat().st_size for file in path.parent.iterdir()),
        "files": len(list(path.parent.iterdir())),
        "open_s": round(opened_s, 2),
        "history_s": round(history_s, 2),
        "verify_s": round(verified_s, 2),
    }


def main() -> None:
    parser = new_parser("bench.journal_append", __doc__, "journal_append.json")
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--long", type=int, default=100_000)
    parser.add_argument("--dir", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        durable = Path(directory) / "durable.jsonl"
        with_sync = append_all(durable, args.entries, os.fdatasync)
        without = append_all(Path(directory) / "fast.jsonl", args.entries, lambda _: None)
        size = durable.stat().st_size
        (Path(directory) / "long").mkdir()
        long_journal(Path(directory) / "long" / "audit.jsonl", args.long)
        long = restart(Path(directory) / "long" / "audit.jsonl")
    result = {
        "entries": args.entries,
        "bytes_per_entry": size // args.entries,
        "append_ms": percentiles_ms(with_sync),
        "append_without_fdatasync_ms": percentiles_ms(without),
        "long": long,
        "cpus": os.cpu_count(),
    }
    write(args.json, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
