"""`flettner audit`, `policies` and `knobs` at a terminal and in a script, without a daemon."""

import json
import os
import shlex
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flettner.agent.audit import checkpoints
from flettner.agent.audit.chain import verify
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.mark import mark_path
from flettner.agent.audit.records import DAEMON, Actor, JournalEntry, parse_record
from flettner.agent.audit.segments import RetentionLimits
from flettner.agent.domain.model import Evidence
from flettner.agent.telemetry.journald import encode_record
from flettner.tools.cli.dispatch import main
from tests.support.rig import FLETTNER
from tests.unit.cli.conftest import Run, runs

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
ANN = Actor(kind="person", id="ann")
APPROVED = JournalEntry(
    at=NOON,
    actor=ANN,
    action="suggestion.approved",
    target="chat",
    op_id="chat-1",
    why="9 requests wait",
    before={"phase": "proposed", "setting": {"max_num_seqs": 4}},
    after={"phase": "launching", "setting": {"max_num_seqs": 8}, "digest": "sha256:1"},
    evidence=(Evidence(metric="waiting", value=9.0, unit="requests", window_s=60.0),),
)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    written = Journal.open(tmp_path / "audit.jsonl", now=lambda: NOON, sync=lambda _: None)
    written.append(replace(APPROVED, actor=DAEMON, action="daemon.started", why="", before={}, after={}))
    written.append(APPROVED)
    written.append(
        replace(APPROVED, action="rollout.rolled_back", actor=DAEMON, error="green \x1b[31mexited\u202e")
    )
    written.append(replace(APPROVED, target="batch", op_id="batch-1", action="rollout.promoted"))
    written.close()
    return tmp_path / "audit.jsonl"


@pytest.fixture
def run(journal: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    return runs(capsys, "audit", options=("--state-dir", str(journal.parent)))


def test_shows_actor_action_and_reason_of_an_entry(run: Run) -> None:
    status, out, _ = run("show", "--action", "suggestion.")

    assert status == 0
    assert out.splitlines() == [
        "    2  2026-03-04 12:00:00 UTC  chat  suggestion.approved  by ann",
        "       9 requests wait",
        "       phase proposed -> launching, max_num_seqs 4 -> 8, digest sha256:1",
        "       waiting 9 requests",
    ]


def test_escapes_terminal_control_sequences_from_a_server(run: Run) -> None:
    _, out, _ = run("show")

    assert "error: green \\x1b[31mexited\\u202e" in out
    assert not {"\x1b", "\u202e"} & set(out)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ((), [1, 2, 3, 4]),
        (("--target", "batch"), [4]),
        (("--action", "rollout."), [3, 4]),
        (("--op", "chat-1", "--after", "1"), [2, 3]),
        (("--target", "nobody"), []),
    ],
)
def test_filters_entries_and_prints_json(run: Run, filters: tuple[str, ...], expected: list[int]) -> None:
    status, out, _ = run("show", "--json", *filters)

    assert status == 0
    assert [entry["seq"] for entry in json.loads(out)] == expected


def test_reports_an_empty_selection(run: Run) -> None:
    assert run("show", "--target", "nobody")[1] == "no entries\n"


def test_verifies_a_valid_journal_and_prints_its_head(run: Run, journal: Path) -> None:
    head = verify(journal).head

    status, out, _ = run("verify")

    assert (status, out) == (0, f"ok: 4 entries, head 4:{head.hash}\n")
    assert run("verify", "--pin", f"4:{head.hash}")[0] == 0


def test_names_the_first_bad_entry_of_a_tampered_journal(run: Run, journal: Path) -> None:
    journal.write_bytes(journal.read_bytes().replace(b"9 requests wait", b"0 requests wait", 1))

    status, out, _ = run("verify")

    assert status == 1
    assert out.startswith("bad: entry 2 (audit.jsonl, line 2): its content does not match its hash")
    assert "the 1 entries before it" in out


def test_torn_last_line_is_a_note_not_tampering(run: Run, journal: Path) -> None:
    journal.write_bytes(journal.read_bytes()[:-10])
    mark_path(journal).unlink()  # a crash leaves the mark of an earlier entry

    status, out, _ = run("verify")

    assert status == 0
    assert "ok: 3 entries" in out
    assert "note: the last line is unfinished" in out
    assert [entry["seq"] for entry in json.loads(run("show", "--json")[1])] == [1, 2, 3]


def test_prints_the_finding_as_json(run: Run, journal: Path) -> None:
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[1:]))

    status, out, _ = run("verify", "--json")

    document = json.loads(out)
    assert status == 1
    expected = {"ok": False, "entries": 0, "first_bad": 1, "torn_tail": 0}
    assert document | expected == document


@pytest.mark.parametrize("lost", ["removed", "emptied"])
def test_a_removed_or_emptied_journal_is_tampering(run: Run, journal: Path, lost: str) -> None:
    if lost == "removed":
        journal.unlink()
    else:
        journal.write_bytes(b"")

    status, out, _ = run("verify")

    assert status == 1
    assert out.startswith("bad: entry 1 (audit.jsonl)")


def test_a_missing_key_is_reported(run: Run, journal: Path, tmp_path: Path) -> None:
    signer = checkpoints.create_signer(tmp_path / "audit.key")
    written = Journal.open(journal, now=lambda: NOON, sync=lambda _: None, signer=signer)
    written.append(APPROVED)
    written.close()
    assert run("verify")[0] == 0

    (tmp_path / "audit.key").unlink()
    status, out, _ = run("verify")

    assert (status, "which is missing" in out) == (1, True)


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_missing_journal_is_unreadable(run: Run, journal: Path, command: str) -> None:
    journal.unlink()
    mark_path(journal).unlink()

    status, out, err = run(command)

    assert (status, out) == (2, "")
    assert "audit.jsonl: cannot be read: " in err


@pytest.mark.parametrize("command", [["show"], ["verify"], ["export"], ["key"]])
def test_missing_state_directory_names_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    missing = tmp_path / "missing"

    status = main(["audit", *command, "--state-dir", str(missing)])

    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err == (
        f"flettner: {missing}: cannot be read: No such file or directory; give --state-dir, the [agent] "
        "state_dir of the config\n"
    )


@pytest.mark.parametrize("command", ["show", "verify", "export", "key"])
def test_state_directory_of_another_user_is_unreadable(run: Run, journal: Path, command: str) -> None:
    run(command)  # imports what another user may not be allowed to
    journal.parent.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may look into every folder
        os.seteuid(54321)
    try:
        status, out, err = run(command)
    finally:
        os.seteuid(user)
        journal.parent.chmod(0o700)

    assert (status, out) == (2, "")
    assert "Permission denied; run this as the user of the daemon, or as root" in err


def test_names_an_invalid_line_and_shows_the_rest(run: Run, journal: Path) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"what\x1b?\n", *lines[1:]]))

    status, out, err = run("show", "--json")

    assert status == 1
    assert err.startswith("flettner: audit.jsonl, line 2: it is not an entry")
    assert [entry["seq"] for entry in json.loads(out)] == [1, 2, 3, 4]


def test_export_can_be_verified_on_another_host(journal: Path, tmp_path: Path) -> None:
    argv = ["audit", "export", "--format", "jsonl", "--state-dir", str(journal.parent)]

    exported = subprocess.run([*FLETTNER, *argv], capture_output=True, check=True)

    (tmp_path / "copy.jsonl").write_bytes(exported.stdout)
    assert verify(tmp_path / "copy.jsonl") == verify(journal)


def test_closed_output_pipe_is_no_error(journal: Path) -> None:
    command = f"{shlex.join(FLETTNER)} audit show --state-dir '{journal.parent}' | true"

    ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("pin", ["4", "4:abc", "0:" + "0" * 64, "x:" + "0" * 64])
def test_invalid_pin_is_a_usage_error(run: Run, pin: str) -> None:
    status, _, err = run("verify", "--pin", pin)

    assert (status, "is not SEQ:HASH" in err) == (2, True)


# selections


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (("--since", "2026-03-04T12:00:00Z"), [1, 2, 3, 4]),
        (("--since", "2026-03-05"), []),
        (("--until", "2026-03-04"), []),
        (("--until", "2026-03-04T13:00:01+01:00", "--target", "batch"), [4]),
        (("--after", "2"), [3, 4]),
    ],
)
@pytest.mark.parametrize("command", ["show", "export"])
def test_filters_entries_by_time_target_and_number(
    run: Run, command: str, filters: tuple[str, ...], expected: list[int]
) -> None:
    _, out, _ = run(command, *filters, *(("--json",) if command == "show" else ()))

    entries = json.loads(out) if command == "show" else [json.loads(line) for line in out.splitlines()]
    assert [entry["seq"] for entry in entries] == expected


def test_shows_entries_in_pages(run: Run) -> None:
    status, out, err = run("show", "--json", "--limit", "3")
    assert (status, len(json.loads(out)), err) == (0, 3, "more: --after 3\n")

    status, out, err = run("show", "--json", "--limit", "3", "--after", "3")
    assert (status, len(json.loads(out)), err) == (0, 1, "")


def test_exports_an_entry_in_journald_format(run: Run) -> None:
    _, out, _ = run("export", "--format", "journald", "--target", "batch")

    (entry,) = out.split("\n\n")[:-1]
    fields = dict(line.split("=", 1) for line in entry.split("\n"))
    assert fields["SYSLOG_IDENTIFIER"] == "flettner"
    assert fields["FLETTNER_AUDIT_SEQ"] == "4"
    assert fields["FLETTNER_TARGET"] == "batch"
    assert fields["__REALTIME_TIMESTAMP"] == "1772625600000000"
    assert json.loads(fields["FLETTNER_RECORD"])["action"] == "rollout.promoted"


def test_exports_a_multiline_value_with_its_length(journal: Path) -> None:
    record = parse_record(journal.read_bytes().splitlines()[0])
    record["why"] = "two\nlines"

    _, _, rest = encode_record(record).partition(b"\nMESSAGE\n")

    length = int.from_bytes(rest[:8], "little")
    assert rest[8 : 8 + length].endswith(b"two\nlines")
    assert rest[8 + length :].startswith(b"\nFLETTNER_AUDIT_SEQ=1\n")


# the key


def test_creates_a_key_once_and_verifies_with_its_public_key(run: Run, journal: Path, tmp_path: Path) -> None:
    status, public, err = run("key")
    again = run("key")
    signer = checkpoints.find_signer(journal.parent)
    assert signer is not None
    written = Journal.open(journal, now=lambda: NOON, sync=lambda _: None, signer=signer)
    written.close()
    (tmp_path / "audit.pub").write_text(public)

    assert (status, again[1]) == (0, public)
    assert signer.id in err
    assert public.startswith("-----BEGIN PUBLIC KEY-----")
    assert "1 signed checkpoints were not verified" in run("verify")[1]
    status, out, _ = run("verify", "--key", str(tmp_path / "audit.pub"))
    assert status == 0
    assert "signed up to entry 5, by 1 checkpoints" in out


def test_missing_public_key_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    status, out, err = run("verify", "--key", str(tmp_path / "nowhere.pub"))

    assert (status, out) == (2, "")
    assert "holds no readable public key" in err


def test_shows_verifies_and_exports_all_files(run: Run, journal: Path) -> None:
    written = Journal.open(
        journal, now=lambda: NOON, sync=lambda _: None, limits=RetentionLimits(segment_bytes=2000)
    )
    for _ in range(20):
        written.append(APPROVED)
    written.close()
    assert len(list(journal.parent.glob("audit-*.jsonl"))) > 1

    shown = [entry["seq"] for entry in json.loads(run("show", "--json")[1])]
    assert shown == list(range(1, written.head.seq + 1))
    assert run("verify")[1].startswith(f"ok: {written.head.seq} entries")
    last = json.loads(run("show", "--json", "--after", str(written.head.seq - 1))[1])
    assert [entry["seq"] for entry in last] == [written.head.seq]


# policies and knobs


def test_every_policy_documents_its_purpose_options_and_sources(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["policies", "--json"]) == 0

    policies = {policy["name"]: policy for policy in json.loads(capsys.readouterr().out)}
    admission = policies["admission"]
    assert admission["does"]
    assert admission["sources"]
    assert {"name", "type", "required", "default", "meaning"} == set(admission["options"][0])


def test_shows_a_policy_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policies", "prefill-budget"]) == 0

    out = capsys.readouterr().out
    assert out.startswith("prefill_budget: ")
    assert "OPTION" in out
    assert "  source: " in out


def test_lists_knobs_with_their_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert main(["knobs", "--json"]) == 0
    knobs = json.loads(capsys.readouterr().out)

    assert len(listed) == len(knobs) + 1
    assert any(knob["name"] == "max_num_seqs" and knob["source"] for knob in knobs)
    assert all(set(knob["effects"]) >= {"ttft", "itl", "throughput", "kv"} for knob in knobs)
    assert any(line.startswith("swap_space ") and " before 0.18 " in line for line in listed)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("seqs", "did you mean max_num_active_seqs, max_num_seqs?"),
        ("max-num-seq", "did you mean max_num_seqs"),
        ("nosuch", "without a name the command lists all of them"),
    ],
)
def test_unknown_knob_gets_the_nearest_names(
    name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["knobs", name]) == 2

    captured = capsys.readouterr().err
    assert text in captured
    assert len(captured) < 300


def test_finds_a_knob_by_its_short_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs", "tp"]) == 0
    assert "tensor_parallel_size" in capsys.readouterr().out


def test_shows_every_fact_of_a_knob(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs", "max-num-active-seqs"]) == 0

    lines = capsys.readouterr().out.splitlines()
    facts = {line.split("  ", 1)[0]: line.split("  ", 1)[-1].strip() for line in lines}
    assert facts["effects"] == "ttft ±, itl +, throughput ±"
    assert facts["since"] == "0.31"
    assert "removed" not in facts


def test_removed_knob_names_its_replacement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs", "cuda-graph-sizes"]) == 0

    assert "Write --cudagraph-capture-sizes." in capsys.readouterr().out
