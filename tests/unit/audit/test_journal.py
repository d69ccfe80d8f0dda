"""The journal is durable, chained, recoverable and free of secrets."""

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flettner.agent.audit.chain import Head, Verification, verify
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.mark import mark_path
from flettner.agent.audit.offsets import STRIDE
from flettner.agent.audit.records import Actor, JournalEntry, parse_state
from flettner.agent.domain.effects import Effects, Retire, Route
from flettner.agent.domain.errors import JournalError
from flettner.agent.domain.fleet import Fleet, Split
from flettner.agent.domain.model import Evidence, Outcome, Plan, Server, Step
from flettner.agent.domain.reading import Request
from flettner.agent.domain.request_counts import RequestCounts, count_requests
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase, State
from tests.support.sampling import examples
from tests.support.suggestions import MADE

NOON = datetime(2026, 3, 4, 12, 0, 0, 123456, tzinfo=UTC)
ANN = Actor(kind="person", id="ann", role="operator")
BLUE = Server(name="chat-r0", setting={"max_num_seqs": 4, "enforce_eager": True}, address="127.0.0.1:8101")
GREEN = Server(
    name="chat-r1", setting=MappingProxyType({"dtype": None, "max_num_seqs": 8, "watermark": 0.01})
)
COUNTS = count_requests(
    [Request(server="chat-r1", outcome="ok", status=200, duration_s=1.5, ttft_s=0.2, tokens=30)]
)
ROUTE = Route(
    number=4,
    servers=(BLUE, GREEN),
    weights={"chat-r0": 95, "chat-r1": 5},
    fallback="chat-r0",
    leased="chat-r1",
    lease_s=15.0,
)
SEEN = (Evidence(metric="waiting", value=9.0, unit="requests", window_s=60.0),)
SUGGESTION = replace(
    MADE,
    proposal=replace(MADE.proposal, why="9.0 requests wait — 4 may run", evidence=SEEN),
    notes=("clamped",),
)
CANARY = State(
    target="chat",
    phase=Phase.CANARY,
    mode="approve",
    epoch=3,
    fleet=Fleet(servers=(BLUE,)),
    split=Split(route=ROUTE),
    effects=Effects(awaited=ROUTE),
    rollout=Canary(
        id="chat-1",
        suggestion=SUGGESTION,
        server="chat-r1",
        greens=(GREEN,),
        replicas={"chat-r0": 1},
        plan=Plan(
            steps=(Step(weight=5, requests=20, at_least_s=30.0, at_most_s=600.0),),
            start_s=900.0,
            warm_up_requests=20,
            warm_up_s=300.0,
            drain_s=120.0,
            lease_s=15.0,
        ),
        started_at=NOON,
        phase_since=NOON,
        green_counts=COUNTS,
        exposed=COUNTS + COUNTS,
        baseline=RequestCounts(),
        log=("INFO ok", "ERROR out of memory"),
    ),
    until=NOON,
    outcomes=(Outcome(at=NOON, result="rolled_back", to={"max_num_seqs": 16}, why="slower"),),
)
ENTRY = JournalEntry(
    at=NOON,
    actor=ANN,
    action="rollout.step",
    target="chat",
    op_id="chat-1",
    why="5 % to green",
    evidence=SEEN,
    before={"max_num_seqs": 4},
    after={"max_num_seqs": 8},
    epoch=3,
    effects=(ROUTE, Retire(number=5, server=BLUE)),
    state=CANARY,
)


def opened(path: Path, sync: Callable[[int], None] = lambda _: None) -> Journal:
    return Journal.open(path, now=lambda: NOON, sync=sync)


def written(path: Path, count: int) -> Path:
    journal = opened(path)
    for number in range(1, count + 1):
        journal.append(replace(ENTRY, why=f"number {number}", state=None, effects=()))
    journal.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


# memory


def test_state_round_trips(path: Path) -> None:
    journal = Journal.open(path, now=lambda: NOON)
    journal.append(ENTRY)
    journal.append(replace(ENTRY, state=State(target="batch", note="é\n\u2028")))
    journal.close()

    again = opened(path)

    assert again.states() == {"chat": CANARY, "batch": State(target="batch", note="é\n\u2028")}
    assert repr(again.states()["chat"].canary.green) == repr(replace(GREEN, setting=dict(GREEN.setting)))
    assert again.epoch() == 3
    assert again.head == journal.head
    assert again.head.seq == 2


def test_the_last_state_of_a_target_holds_before_and_after_a_restart(path: Path) -> None:
    journal = opened(path)
    journal.append(ENTRY)
    journal.append(replace(ENTRY, state=replace(CANARY, phase=Phase.COOLDOWN), epoch=2))
    journal.append(replace(ENTRY, state=None, epoch=1))

    assert journal.states()["chat"].phase is Phase.COOLDOWN
    assert opened(path).states()["chat"].phase is Phase.COOLDOWN
    assert opened(path).epoch() == 3


def test_a_record_has_actor_action_reason_and_effects(path: Path) -> None:
    record = opened(path).append(ENTRY)

    assert record["actor"] == {"kind": "person", "id": "ann", "role": "operator"}
    assert record["ts"] == "2026-03-04T12:00:00.123Z"
    assert record["evidence"] == [{"metric": "waiting", "value": 9, "unit": "requests", "window_s": 60}]
    assert [effect["kind"] for effect in record["effects"]] == ["route", "retire"]
    assert (record["seq"], record["prev"], record["epoch"]) == (1, "0" * 64, 3)
    assert parse_state(record) == CANARY


scalars: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False) | st.text()
)


@settings(
    max_examples=examples(160), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    setting=st.dictionaries(
        st.from_regex(r"[a-df-z_]{1,9}", fullmatch=True),
        st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e15, 1e15),
        max_size=4,
    ),
    note=st.text(alphabet='abc "\\\n\u2028é😀\x00\x7f'),
    counts=st.lists(st.integers(0, 2**40), min_size=82, max_size=82),
    phase=st.sampled_from(Phase),
    at=st.datetimes(timezones=st.just(UTC)),
)
def test_any_state_round_trips(
    path: Path, setting: dict[str, Any], note: str, counts: list[int], phase: Phase, at: datetime
) -> None:
    rollout = replace(
        CANARY.canary, green_counts=RequestCounts(total=1, refused=counts[0], ttft=tuple(counts))
    )
    blue = replace(BLUE, setting=setting)
    state = replace(
        CANARY,
        phase=phase,
        note=note,
        until=at,
        rollout=rollout,
        fleet=replace(CANARY.fleet, servers=(blue,)),
    )
    path.unlink(missing_ok=True)
    mark_path(path).unlink(missing_ok=True)
    journal = opened(path)

    journal.append(replace(ENTRY, state=state))
    journal.close()

    again = opened(path)
    assert again.states() == {"chat": state}
    again.close()


@settings(
    max_examples=examples(160), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    after=st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            scalars | st.integers() | st.floats(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=6,
        ),
    )
)
def test_any_entry_can_be_written_and_verified(path: Path, after: dict[str, Any]) -> None:
    path.unlink(missing_ok=True)
    mark_path(path).unlink(missing_ok=True)
    journal = opened(path)

    journal.append(replace(ENTRY, after=after, state=None, why=str(after)))
    journal.close()

    assert verify(path).ok


def test_undecodable_bytes_and_infinite_numbers_do_not_stop_the_journal(path: Path) -> None:
    evidence = (Evidence(metric="waiting", value=float("inf"), unit="", window_s=float("nan")),)
    proposal = replace(SUGGESTION.proposal, evidence=evidence)
    rollout = replace(CANARY.canary, suggestion=replace(SUGGESTION, proposal=proposal))
    state = replace(CANARY, note="log: \udcff\udc80", rollout=rollout)
    journal = opened(path)

    journal.append(replace(ENTRY, state=state))

    back = opened(path).states()["chat"]
    assert back.note == "log: ??"
    assert back.canary.suggestion.proposal.evidence[0].value == float("inf")


def test_a_state_that_could_not_be_read_back_is_refused_when_written(path: Path) -> None:
    journal = opened(path)

    with pytest.raises(JournalError, match=r"rollout\.step cannot be written: its state cannot be read"):
        journal.append(replace(ENTRY, state=replace(CANARY, mode=cast("Any", "reckless"))))

    assert path.read_bytes() == b""
    assert journal.append(ENTRY)["seq"] == 1


# following


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("seq", [-5, 0, 1, STRIDE - 1, STRIDE, STRIDE + 1, 2 * STRIDE, 149, 150, 151])
def test_entries_after_a_number_are_read_from_disk(path: Path, *, reopened: bool, seq: int) -> None:
    journal = opened(path)
    for _ in range(150):
        journal.append(replace(ENTRY, state=None, effects=()))
    if reopened:
        journal.close()
        journal = opened(path)

    numbers = [record["seq"] for record in journal.after(seq, 70)]

    assert numbers == list(range(max(seq, 0) + 1, 151))[:70]


async def test_a_follower_gets_every_entry_once_and_in_order(path: Path) -> None:
    journal = opened(path)
    journal.append(ENTRY)
    received: list[int] = []

    async def follow(after: int | None) -> None:
        async with aclosing(cast("Any", journal.subscribe(after))) as records:
            async for record in records:
                received.append(record["seq"])
                if record["seq"] == 200:
                    return

    from_the_start = asyncio.create_task(follow(0))
    await asyncio.sleep(0)
    for number in range(2, 201):
        await asyncio.to_thread(journal.append, replace(ENTRY, state=None))
        if number == 150:
            await asyncio.sleep(0.01)
    await asyncio.wait_for(from_the_start, 30)

    assert received == list(range(1, 201))
    assert not journal._followers._waiting


def test_a_follower_whose_loop_is_gone_does_not_stop_the_writer(path: Path) -> None:
    journal = opened(path)
    journal.append(ENTRY)
    loop = asyncio.new_event_loop()
    records = journal.subscribe(0)
    loop.run_until_complete(cast("Any", anext(records)))
    loop.close()

    assert journal.append(ENTRY)["seq"] == 2


async def test_a_follower_without_a_number_gets_only_new_entries(path: Path) -> None:
    journal = opened(path)
    journal.append(ENTRY)
    records = journal.subscribe()
    journal.append(replace(ENTRY, action="rollout.promoted"))

    record = await asyncio.wait_for(anext(records), 30)

    assert record["action"] == "rollout.promoted"


# a full disk


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Limit the file size with RLIMIT_FSIZE: a write is cut short at `size`, the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_leaves_no_partial_entry(path: Path) -> None:
    journal = opened(path)
    journal.append(ENTRY)
    content = path.read_bytes()

    with (
        no_file_larger_than(len(content) + 100),
        pytest.raises(JournalError, match="entry 2 cannot be written"),
    ):
        journal.append(ENTRY)
    left = path.read_bytes()
    journal.append(replace(ENTRY, why="room again"))

    assert left == content
    assert journal.head.seq == 2
    assert verify(path) == Verification(entries=2, ok=True, head=journal.head)


def test_an_entry_that_failed_to_sync_is_truncated(path: Path) -> None:
    failing = [False]

    def sync(fd: int) -> None:
        if failing[0]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(fd)

    journal = opened(path, sync)
    journal.append(ENTRY)
    failing[0] = True

    with pytest.raises(JournalError, match="Input/output error"):
        journal.append(replace(ENTRY, state=replace(CANARY, phase=Phase.HALTED)))

    failing[0] = False
    assert verify(path).entries == 1
    assert journal.states()["chat"].phase is Phase.CANARY
    assert journal.append(ENTRY)["seq"] == 2


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"nowhere/audit\.jsonl: cannot be opened"):
        opened(tmp_path / "nowhere" / "audit.jsonl")


def test_a_closed_journal_refuses_to_write(path: Path) -> None:
    journal = opened(path)
    journal.close()

    with pytest.raises(JournalError, match="is closed"):
        journal.append(ENTRY)


def test_only_the_owner_may_read_the_file(path: Path) -> None:
    opened(path).append(ENTRY)

    assert path.stat().st_mode & 0o777 == 0o600


WRITER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.records import DAEMON, JournalEntry
noon = datetime(2026, 3, 4, tzinfo=UTC)
journal = Journal.open(Path(sys.argv[1]), now=lambda: noon)
while True:
    record = journal.append(JournalEntry(at=noon, actor=DAEMON, action="daemon.ticked", why="x" * 20000))
    print(record["seq"], flush=True)
"""


def test_acknowledged_entries_survive_a_kill(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 20:
            break
    process.kill()
    acknowledged = max([20, *(int(line) for line in process.stdout if line.endswith("\n"))])
    process.stdout.close()
    process.wait()

    journal = opened(path)

    assert journal.head.seq >= acknowledged
    assert verify(path).ok


# crash and tampering


def test_a_line_torn_at_any_byte_is_distinguished_from_tampering(path: Path) -> None:
    content = written(path, 3).read_bytes()
    start = content.rindex(b"\n", 0, -1) + 1

    for end in range(start + 1, len(content)):
        path.write_bytes(content[:end])
        report = verify(path)
        assert (report.ok, report.entries, report.torn_tail) == (True, 2, end - start)


def test_a_torn_line_is_moved_and_recorded(path: Path) -> None:
    content = written(path, 3).read_bytes()
    start = content.rindex(b"\n", 0, -1) + 1
    path.write_bytes(content[:-7])
    mark_path(path).unlink()  # a crash leaves the mark of an earlier entry

    journal = opened(path)

    record = journal.after(2, 10)[-1]
    assert record["action"] == "audit.truncated_tail"
    assert record["after"]["bytes"] == len(content) - 7 - start
    assert len(record["after"]["sha256"]) == 64
    assert (path.parent / "audit.torn-1").read_bytes() == content[start:-7]
    assert verify(path) == Verification(entries=3, ok=True, head=journal.head)


def test_a_second_torn_line_does_not_overwrite_the_first(path: Path) -> None:
    for _ in range(2):
        opened(path).append(ENTRY)
        path.write_bytes(path.read_bytes()[:-1])
        mark_path(path).unlink()
        opened(path).close()

    assert (path.parent / "audit.torn-2").exists()
    assert verify(path).entries == 2


def test_a_page_that_did_not_reach_the_disk_counts_as_torn(path: Path) -> None:
    lines = written(path, 3).read_bytes().splitlines(keepends=True)
    start = len(lines[0] + lines[1])
    missing = -start % 512 + 512  # to the end of a sector
    path.write_bytes(lines[0] + lines[1] + b"\0" * missing + lines[2][missing:])
    mark_path(path).unlink()

    assert opened(path).head.seq == 3
    assert verify(path).ok


def edited(lines: list[bytes]) -> list[bytes]:
    lines[2] = lines[2].replace(b"number 3", b"number 9")
    return lines


def cut(lines: list[bytes]) -> list[bytes]:
    return lines[:2] + lines[3:]


def beheaded(lines: list[bytes]) -> list[bytes]:
    return lines[1:]


def swapped(lines: list[bytes]) -> list[bytes]:
    lines[2], lines[3] = lines[3], lines[2]
    return lines


def duplicated(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], *lines[2:]]


def blank(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], b"\n", *lines[2:]]


def spaced(lines: list[bytes]) -> list[bytes]:
    lines[2] = lines[2].replace(b'"seq":3', b'"seq": 3')
    return lines


def not_json(lines: list[bytes]) -> list[bytes]:
    lines[2] = b"[" * 100_000 + b"\n"
    return lines


def of_another_journal(lines: list[bytes]) -> list[bytes]:
    """Insert entry 3 of a journal that differs in entry 2: all valid except `prev`."""
    return [*lines[:2], *lines[5 + 2 :]]


@pytest.mark.parametrize(
    ("tamper", "first_bad", "problem"),
    [
        (edited, 3, "it was edited"),
        (cut, 3, "entries before it are missing"),
        (beheaded, 1, "entries before it are missing"),
        (swapped, 3, "missing or were moved"),
        (duplicated, 4, "duplicated"),
        (blank, 3, "not an entry"),
        (spaced, 3, "it was edited"),
        (not_json, 3, "not an entry"),
        (of_another_journal, 3, "is not the hash of the entry before"),
    ],
)
def test_tampering_is_found_and_the_first_bad_entry_named(
    path: Path, tamper: Callable[[list[bytes]], list[bytes]], first_bad: int, problem: str
) -> None:
    lines = written(path, 5).read_bytes().splitlines(keepends=True)
    if tamper is of_another_journal:
        other = opened(path.with_name("other.jsonl"))
        for number in (1, 22, 3, 4, 5):
            other.append(replace(ENTRY, why=f"number {number}", state=None, effects=()))
        lines += path.with_name("other.jsonl").read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(tamper(lines)))
    before = path.read_bytes()

    report = verify(path)

    assert (report.ok, report.first_bad, report.entries) == (False, first_bad, first_bad - 1)
    assert problem in report.problem
    with pytest.raises(JournalError, match=rf"entry {first_bad} \(line {first_bad}\) is bad"):
        opened(path)
    assert path.read_bytes() == before


def test_a_change_of_any_single_byte_is_found(path: Path) -> None:
    content = written(path, 2).read_bytes()
    first = content.index(b"\n")

    for place in range(first + 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        report = verify(path)
        assert (report.ok, report.first_bad) == (False, 1), f"byte {place}"


@settings(
    max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(garbage=st.binary(max_size=300))
def test_verifies_any_garbage_without_an_exception(path: Path, garbage: bytes) -> None:
    path.write_bytes(garbage + b"\n")

    report = verify(path)

    assert report.entries == 0
    assert report.ok == bool(report.torn_tail)


def test_a_cut_end_is_found_with_a_pin(path: Path) -> None:
    lines = written(path, 5).read_bytes().splitlines(keepends=True)
    noted = verify(path).head
    path.write_bytes(b"".join(lines[:3]))

    assert verify(path).ok
    report = verify(path, pins=[noted])

    assert (report.ok, report.first_bad) == (False, 4)
    assert "cut off or rewritten" in report.problem


def test_a_pin_stays_valid_while_the_journal_grows(path: Path) -> None:
    noted = verify(written(path, 3)).head
    journal = opened(path)
    journal.append(ENTRY)

    assert verify(path, pins=[noted]).ok
    assert verify(path, pins=[Head()]).ok
    assert not verify(path, pins=[Head(seq=2, hash=noted.hash)]).ok


def test_an_unreadable_file_is_an_error_and_not_tampering(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be read"):
        verify(tmp_path / "audit.jsonl")


# secrets


def test_no_secret_reaches_the_file(path: Path) -> None:
    planted = "PLANTED-s3cret/0123"
    log = (
        f"non-default args: {{'api_key': ['{planted}'], 'model': 'm'}}",
        f"vllm serve m --api-key {planted} --port 80",
        f"['vllm', '--hf-token', '{planted}']",
        f"HF_TOKEN={planted}",
        f'{{"password": "{planted}"}}',
        f"GET / Authorization: Bearer {planted}",
        f"proxy is http://user:{planted}@proxy:80/",
    )
    green = replace(GREEN, setting={"api_key": planted, "max_num_batched_tokens": 8192})
    state = replace(
        CANARY,
        rollout=replace(CANARY.canary, log=log, greens=(green,)),
        note="; ".join(log),
    )
    after = {
        "argv": ["vllm", "serve", "--api-key", planted],
        "env": {
            "HUGGING_FACE_HUB_TOKEN": planted,
            "VLLM_API_KEY": [planted],
            "AWS_SECRET_ACCESS_KEY": planted,
        },
        "credentials": {"user": planted},
    }
    journal = opened(path)

    journal.append(replace(ENTRY, state=state, why=log[1], error=log[3], after=after))

    assert planted not in path.read_text(encoding="utf-8")
    written = journal.after(0, 1)[0]["state"]
    assert written is not None
    assert written["rollout"]["greens"][0]["setting"] == {"api_key": "***", "max_num_batched_tokens": 8192}


@pytest.mark.parametrize(
    "text",
    [
        "time per output token: 35 ms, was 20 ms",
        "max_num_batched_tokens=8192, prompt_tokens: 55",
        "vllm serve m --max-num-batched-tokens 8192 --tokenizer-mode slow --skip-tokenizer-init",
        "Namespace(api_key=None, port=80)",
        "--api-key --port 80",
        "the monkeys are 3 of 5",
    ],
)
def test_what_only_looks_like_a_secret_stays_readable(path: Path, text: str) -> None:
    record = opened(path).append(replace(ENTRY, why=text, state=None))

    assert record["why"] == text
