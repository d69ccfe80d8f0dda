"""The commands against a real API on a real socket, backed by an in-memory daemon."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import get_args

import pytest

import flettner.agent.api.client
from flettner.agent.api.client import LOOPBACK, find_default_url
from flettner.agent.api.peer_identity import PeerIdentities
from flettner.agent.api.tokens import Tokens
from flettner.agent.domain.cost import Cost
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.headroom import Headroom
from flettner.agent.domain.model import Outcome, PreflightResult
from flettner.agent.domain.model_search import Capacity, ModelSearchResult, PredictedChange
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.statuses import SuggestionStatus
from flettner.agent.observe.spending import Spending
from flettner.performance_model.band import Band
from tests.support.fake_daemon_view import NOON, FakeDaemonView
from tests.support.served_api import served
from tests.unit.cli.conftest import Run
from tests.unit.cli.terminals import terminal

ZEROS = "sha256:" + "0" * 64


def test_status_shows_a_full_journal(run: Run, daemon: FakeDaemonView) -> None:
    assert "journal is full" not in run("status")[1]
    daemon.full = True

    assert "the audit journal is full" in run("status")[1]
    assert "the audit journal is full" in run("status", "chat")[1]


def test_status_shows_targets_and_open_suggestions(run: Run, daemon: FakeDaemonView) -> None:
    daemon.suggest({"max_num_seqs": 128})

    status, out, err = run("status")

    assert (status, err) == (0, "")
    assert out.splitlines()[:2] == [
        "TARGET  PHASE     MODE     GOODPUT  TTFT P95  SERVERS",
        "chat    proposed  approve  7.5/s    420 ms    chat-r0 blue",
    ]
    assert "chat: chat-s1 needs approval: `flettner approve chat-s1`" in out
    assert "chat: nvidia_smi is lost: no such command" in out


def test_json_is_the_api_response(run: Run, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})

    assert json.loads(run("status", "--json")[1])["targets"][0]["name"] == "chat"
    assert json.loads(run("status", "chat", "--json")[1])["suggestion"] == "chat-s1"
    assert json.loads(run("suggestions", "--json")[1])["suggestions"][0]["digest"] == made.digest
    assert json.loads(run("pause", "chat", "--json")[1])["paused"] is True
    assert json.loads(run("approve", "chat-s1", "--digest", ZEROS, "--json")[1])["status"] == 409


def test_status_and_suggestions_show_the_cost(run: Run, daemon: FakeDaemonView) -> None:
    made, target = daemon.suggest({"max_num_seqs": 128}), daemon.targets()["chat"]
    cost = Cost(gpus=2, power_w=900.0, per_hour=5.0, per_million_tokens=0.2374, tokens_per_joule=6.24)
    target.spending = Spending(cost=cost)
    now, then = ({"cost_per_million_tokens": Band(value=x, low=x, high=2 * x)} for x in (0.62, 0.2374))
    target.search_result = ModelSearchResult(
        made_at=NOON,
        setting={},
        rate_rps=1.0,
        requests=100,
        law_source="iteration log",
        itl_error=0.0,
        ttft_error=0.0,
        wanted=0.95,
        present=now,
        best=PredictedChange(to={"max_num_seqs": 128}, gain=Band(value=0.1, low=0.1, high=0.1)),
        then=then,
        capacity=Capacity(rate_rps=1.0, servers=1),
    )

    target.headroom = Headroom(
        made_at=NOON,
        capacity_rps=Band(value=14.0, low=13.0, high=15.0),
        share=0.95,
        peak_rps=5.2,
        hours=168,
        servers=4,
        enough=2,
        text="2 of 4 servers are enough",
    )

    assert "chat: 2 GPUs, 900 W; 0.237 for a million tokens, 6.24 tokens per joule\n" in run("status")[1]
    assert "chat: 2 of 4 servers are enough\n" in run("status")[1]
    assert (
        "  cost     cost of a million tokens: 0.620 (0.620 to 1.24) -> 0.237 (0.237 to 0.475)\n"
        in run("suggestions", made.id)[1]
    )
    shown = json.loads(run("suggestions", made.id, "--json")[1])["cost"]
    assert shown["then"]["cost_per_million_tokens"]["value"] == 0.2374


def test_a_suggestion_names_its_rule_by_id_and_slug(run: Run, daemon: FakeDaemonView) -> None:
    daemon.suggest({"max_num_seqs": 128})
    daemon.suggest({"max_num_seqs": 96}, rule="ACME-1")

    documents = json.loads(run("suggestions", "--json")[1])["suggestions"]
    assert sorted((document["rule"], document["slug"]) for document in documents) == [
        ("ACME-1", ""),
        ("Q1", "queue-cap-too-low"),
    ]
    assert "(rule Q1 queue-cap-too-low, by " in run("suggestions", "chat-s1")[1]
    assert "(rule ACME-1, by " in run("suggestions", "chat-s2")[1]


def test_names_the_operator_who_may_not_approve_their_proposal(run: Run, daemon: FakeDaemonView) -> None:
    daemon.set(replace(daemon.targets()["chat"].state, approval="other"))

    proposed, out, _ = run("propose", "chat", "max_num_seqs=128", "--reason", "more")
    digest = daemon.suggestions()[0].digest
    status, _, err = run("approve", "chat-s1", "--digest", digest)

    assert proposed == 0
    assert "  approval by another operator than ann\n" in out
    assert "It needs approval by another operator than ann: `flettner approve chat-s1`" in out
    assert (status, "ann proposed this change, so another operator must approve it" in err) == (1, True)


def test_in_advise_mode_the_status_names_the_command_to_copy(run: Run, daemon: FakeDaemonView) -> None:
    daemon.set(replace(daemon.targets()["chat"].state, mode="advise"))
    daemon.suggest({"max_num_seqs": 128})

    shown = run("status")[1]
    status, command, hint = run("suggestions", "chat-s1", "--command")

    assert (
        "chat: chat-s1 is to apply by hand: `flettner suggestions chat-s1 --command` prints the new command"
        in shown
    )
    assert "needs approval" not in shown
    assert status == 0
    assert command.startswith("vllm serve")
    assert "--max-num-seqs 128" in command
    assert "--port" in hint
    assert run("suggestions", "--command")[0] == 2


def wait_for_windows(daemon: FakeDaemonView) -> None:
    """Approve the open suggestion while the windows are closed."""
    state = daemon.targets()["chat"].state
    (made,) = state.suggestions.open
    waiting = replace(made, approved_by="operator bob")
    daemon.set(replace(state, suggestions=replace(state.suggestions, open=(waiting,))))


def test_an_approval_that_waits_for_the_windows_asks_for_no_other(run: Run, daemon: FakeDaemonView) -> None:
    daemon.suggest({"max_num_seqs": 128})
    wait_for_windows(daemon)

    shown, one = run("status")[1], run("suggestions", "chat-s1")[1]

    assert "chat-s1 is approved, and waits for its turn or for the windows to open" in shown
    assert "needs approval" not in shown
    assert "approved by operator bob; starts when the windows open\n" in one
    assert "status   approved, waits\n" in one
    assert "expires " not in one
    target = json.loads(run("status", "chat", "--json")[1])
    assert (target["suggestion"], target["suggestions"], target["approved"]) == (None, [], ["chat-s1"])


def test_lists_suggestions_with_their_change(run: Run, daemon: FakeDaemonView) -> None:
    daemon.suggest({"max_num_seqs": 128, "enforce_eager": None})
    daemon.suggest({"max_num_seqs": 96})
    daemon.suggest({"enforce_eager": False})

    _, out, _ = run("suggestions")

    head, first, second, ended = (
        [cell.strip() for cell in row.split("  ") if cell] for row in out.splitlines()
    )
    assert head == ["ID", "TARGET", "STATUS", "RANK", "CLASS", "CHANGE", "WHY"]
    assert first[:4] == ["chat-s3", "chat", "open", "1"]
    assert second == ["chat-s2", "chat", "open", "2", "auto", "max_num_seqs 64 -> 96", "3 requests wait"]
    assert ended[:4] == ["chat-s1", "chat", "superseded", "-"]
    assert "max_num_seqs 64 -> 128, enforce_eager default -> default" in ended
    assert "chat-s3 needs approval" in run("status")[1]
    assert "chat-s2 needs approval" in run("status")[1]
    assert run("suggestions", "--status", "open", "--target", "other")[1] == "no suggestions\n"


def test_a_change_of_a_manifest_is_printed_and_left_to_its_owner(run: Run, daemon: FakeDaemonView) -> None:
    daemon.checks = True
    daemon.suggest({"max_num_seqs": 128})
    made = daemon.answer(PreflightResult(owner="Argo CD", patch="- op: test\n"))

    assert run("suggestions", made.id, "--patch") == (0, "- op: test\n", "")
    assert run("suggestions", made.id)[1].startswith("chat-s1\n  change   max_num_seqs 64 -> 128\n")
    status, _, err = run("approve", made.id, "--digest", made.digest)
    assert (status, "Argo CD writes the manifest" in err) == (1, True)


def test_an_upgrade_shows_all_that_differs_a_line_each(run: Run, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"image": "vllm:v0.33.0@sha256:1", "attention_backend": None, "env.A": "1"})
    versions = {"vLLM": ("0.32.0", "0.33.0"), "CUDA": ("", "13.0")}
    preflight = replace(made.preflight, versions=versions)
    state = daemon.targets()["chat"].state
    opened = (replace(made, preflight=preflight, before={**made.before, "image": "vllm:v0.32.0@sha256:0"}),)
    daemon.set(replace(state, suggestions=replace(state.suggestions, open=opened)))

    out = run("suggestions", made.id)[1]

    assert out.startswith(
        "chat-s1\n"
        "  change   image: vllm:v0.32.0@sha256:0 -> vllm:v0.33.0@sha256:1\n"
        "           attention_backend: default -> default\n"
        "           env.A: unset -> 1\n"
        "           vLLM: 0.32.0 -> 0.33.0\n"
        "           CUDA: unknown -> 13.0\n"
    ), out


def test_a_held_suggestion_is_shown_with_what_to_commit(run: Run, daemon: FakeDaemonView) -> None:
    daemon.checks = True
    daemon.suggest({"max_num_seqs": 128})
    daemon.answer(PreflightResult(owner="Argo CD", patch="- op: test\n"))

    shown = run("status")[1]
    assert (
        "chat-s1 is held: commit its change where the manifest is kept: `flettner suggestions chat-s1"
        in shown
    )
    assert "needs approval" not in shown
    assert "held" in run("suggestions")[1].splitlines()[1]
    target = json.loads(run("status", "chat", "--json")[1])
    assert (target["suggestion"], target["suggestions"], target["held"]) == (None, [], ["chat-s1"])


def test_a_server_without_a_manifest_has_no_patch(run: Run, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})

    assert "has no patch" in run("suggestions", made.id, "--patch")[2]
    assert run("suggestions", "--patch")[0] == 2


@pytest.mark.parametrize("option", ["--reason", "--comment"])
def test_approval_with_the_digest_starts_the_rollout(run: Run, daemon: FakeDaemonView, option: str) -> None:
    made = daemon.suggest({"max_num_seqs": 128})

    status, out, _ = run("approve", made.id, "--digest", made.digest, option, "go")

    assert (status, out) == (0, "chat-s1 is approved: max_num_seqs 64 -> 128\n")
    assert daemon.targets()["chat"].state.phase is Phase.LAUNCHING


def test_approval_without_a_terminal_requires_the_digest(run: Run, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})

    status, out, err = run("approve", made.id)

    assert (status, out) == (2, "")
    assert "--digest" in err
    assert made.digest not in err
    assert daemon.targets()["chat"].state.phase is Phase.PROPOSED


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(("typed", "expected"), [("y\n", 0), ("\n", 1), ("no\n", 1), ("\x04", 1)])
def test_approval_at_a_terminal_asks_for_confirmation(
    daemon: FakeDaemonView, typed: str, expected: int
) -> None:
    made = daemon.suggest({"max_num_seqs": 128}, why="3 requests wait \x1b[2J")

    with terminal("approve", made.id, columns=200) as window:
        shown = window.until("[y/N]")
        window.type(typed)
        status, _ = window.end()

    assert status == expected
    for text in ("max_num_seqs 64 -> 128", "3 requests wait \\x1b[2J", "auto", made.digest, "more KV cache"):
        assert text in shown
    assert daemon.suggestions()[0].status == ("approved" if expected == 0 else "open")


def test_refuses_a_changed_suggestion_with_the_reason(run: Run, daemon: FakeDaemonView) -> None:
    daemon.suggest({"max_num_seqs": 128})

    status, out, err = run("approve", "chat-s1", "--digest", ZEROS)

    assert (status, out) == (1, "")
    assert "has changed since it was shown" in err


def test_refuses_an_expired_suggestion(run: Run, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    daemon.at += timedelta(hours=2)

    assert run("approve", made.id, "--digest", made.digest)[0] == 1
    assert "expired" in run("deny", made.id, "--reason", "late")[2]


@pytest.mark.usefixtures("run")
def test_a_superseded_suggestion_is_refused_before_the_question(daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    daemon.suggest({"max_num_seqs": 96})

    with terminal("approve", made.id, columns=200) as window:
        shown = window.until("suggestions --status open")
        status, _ = window.end()

    assert (status, "[y/N]" in shown) == (1, False)
    assert f"{made.id} is superseded" in shown


def test_maintenance_begins_by_a_pause_and_ends_by_resume(run: Run, daemon: FakeDaemonView) -> None:
    assert run("pause", "chat", "--maintenance")[1] == "chat is in maintenance\n"
    assert "(maintenance)" in run("status")[1]
    assert run("pause", "chat")[1] == "chat is paused\n"
    assert run("resume", "chat")[1] == "chat is not paused\n"
    daemon.set(replace(daemon.targets()["chat"].state, phase=Phase.RESTORING, note="r0 exited"))
    status, _, err = run("pause", "chat", "--maintenance")
    assert (status, "No maintenance now: A server that exited is being replaced" in err) == (1, True)


def test_denial_requires_a_reason(run: Run, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})

    assert run("deny", made.id)[0] == 2
    assert run("deny", made.id, "--reason", "not today") == (0, "chat-s1 is denied\n", "")
    assert daemon.suggestions()[0].status == "denied"


@pytest.mark.parametrize(
    ("written", "knob", "value"),
    [
        ("max_num_seqs=128", "max_num_seqs", 128),
        ("--max-num-seqs=128", "max_num_seqs", 128),
        ("gpu_memory_utilization=0.85", "gpu_memory_utilization", 0.85),
        ("enforce_eager=false", "enforce_eager", False),
        ("max_num_batched_tokens=null", "max_num_batched_tokens", None),
        ("kv_cache_dtype=fp8", "kv_cache_dtype", "fp8"),
        ('compilation_config={"level": 3}', "compilation_config", '{"level": 3}'),
        ("dtype=NaN", "dtype", "NaN"),
        ("dtype=a=b", "dtype", "a=b"),
    ],
)
def test_accepts_the_common_spellings_of_a_knob(
    run: Run, daemon: FakeDaemonView, written: str, knob: str, value: object
) -> None:
    status, out, _ = run("propose", "chat", "--reason", "a test", "--", written)

    assert status == 0
    assert dict(daemon.suggestions()[0].proposal.to) == {knob: value}
    assert out.endswith("It needs approval: `flettner approve chat-s1`\n")


def add_code(daemon: FakeDaemonView) -> None:
    """A second target."""
    blue = replace(daemon.targets()["chat"].state.fleet.servers[0], name="code-r0")
    daemon.set(State(target="code", mode="approve", fleet=Fleet(servers=(blue,))))


def test_proposes_a_change_of_several_targets_one_after_the_other(run: Run, daemon: FakeDaemonView) -> None:
    add_code(daemon)

    status, out, _ = run("propose", "chat,code", "max_num_seqs=32", "--reason", "newer")
    second, first = daemon.suggestions()

    assert status == 0
    assert (first.target, first.proposal.after) == ("chat", "")
    assert (second.target, second.proposal.after) == ("code", first.id)
    assert all(f"`flettner approve {made.id}`" in out for made in (first, second))


@pytest.mark.parametrize(
    ("targets", "status", "why"),
    [
        ("chat,code,chat", 2, "a target is named twice"),
        ("chat,serach", 1, "There is no target 'serach'"),
        ("chat,", 2, "or has no name"),
    ],
)
def test_nothing_is_proposed_where_a_target_is_wrong(
    run: Run, daemon: FakeDaemonView, targets: str, status: int, why: str
) -> None:
    add_code(daemon)

    ended, _, err = run("propose", targets, "max_num_seqs=32", "--reason", "newer")

    assert (ended, why in err) == (status, True), err
    assert list(daemon.suggestions()) == []


def test_a_refused_change_is_not_proposed_to_the_next_target(run: Run, daemon: FakeDaemonView) -> None:
    add_code(daemon)
    status, _, err = run("propose", "chat,code", "max_num_seqs=4096", "--reason", "more")

    assert (status, list(daemon.suggestions())) == (1, [])
    assert "above the bound 512" in err


@contextmanager
def answering(daemon: FakeDaemonView, preflight: PreflightResult) -> Iterator[None]:
    """Check each proposal before its result is served."""
    daemon.checks = True

    def answer() -> None:
        while daemon.targets()["chat"].state.phase is not Phase.CHECKING:
            time.sleep(0.01)
        daemon.answer(preflight)

    thread = threading.Thread(target=answer)
    thread.start()
    yield
    thread.join(timeout=60)


def test_shows_a_proposal_after_its_check(run: Run, daemon: FakeDaemonView) -> None:
    preflight = PreflightResult(strategy="swap", why="there is one GPU", start_s=40, outage_s=52.4)
    with answering(daemon, preflight):
        status, out, err = run("propose", "chat", "max_num_seqs=128", "--reason", "more")

    assert status == 0
    assert "outage   planned, about 52 s" in out
    assert "status   open" in out
    assert out.endswith("It needs approval: `flettner approve chat-s1`\n")
    assert "chat-s1 is being checked; nothing is changed yet" in err


def test_infeasible_proposal_is_reported_with_the_reason(run: Run, daemon: FakeDaemonView) -> None:
    with answering(daemon, PreflightResult(problem="vLLM does not take max_num_seqs 0", lasting=True)):
        status, out, err = run("propose", "chat", "max_num_seqs=0", "--reason", "less")

    assert status == 1
    assert "status   refused" in out
    assert err.endswith("flettner: chat-s1 was refused: vLLM does not take max_num_seqs 0\n")
    assert "flettner approve" not in out


def test_json_shows_the_checked_proposal(run: Run, daemon: FakeDaemonView) -> None:
    with answering(daemon, PreflightResult(problem="no room")):
        status, out, _ = run("propose", "chat", "max_num_seqs=128", "--reason", "more", "--json")

    answer = json.loads(out)
    assert (status, answer["status"], answer["notes"]) == (1, "refused", ["no room"])


@pytest.mark.parametrize("status", get_args(SuggestionStatus))
def test_lists_suggestions_of_any_status(run: Run, status: str) -> None:
    assert run("suggestions", "--status", status)[:2] == (0, "no suggestions\n")


@pytest.mark.parametrize("knobs", [("max_num_seqs",), ("=1",), ("Max=1",), ("a=1", "a=2"), ()])
def test_invalid_change_is_a_usage_error(run: Run, knobs: tuple[str, ...]) -> None:
    assert run("propose", "chat", *knobs, "--reason", "r")[0] == 2


def test_abort_finds_the_rollout_of_the_target(run: Run, daemon: FakeDaemonView) -> None:
    assert run("abort", "chat")[0] == 1

    made = daemon.suggest({"max_num_seqs": 128})
    run("approve", made.id, "--digest", made.digest)

    assert run("abort", "chat", "--reason", "an incident") == (0, "chat-o1 is being rolled back\n", "")
    daemon.settle(promoted=False)
    assert run("abort", "chat") == (0, "chat-o1 is rolled back\n", "")


def test_abort_takes_the_id_of_a_rollout(run: Run, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    run("approve", made.id, "--digest", made.digest)

    assert run("abort", "chat-o1") == (0, "chat-o1 is being rolled back\n", "")
    assert "There is no target 'chat-o7'" in run("abort", "chat-o7")[2]


def test_undo_proposes_the_values_before_the_last_promotion(run: Run, daemon: FakeDaemonView) -> None:
    state = daemon.targets()["chat"].state
    earlier = Outcome(at=NOON, result="promoted", to={"max_num_seqs": 64}, before={"max_num_seqs": 32})
    assert run("undo", "chat", "--reason", "slower")[0] == 1
    daemon.set(replace(state, outcomes=(earlier,)))

    status, out, err = run("undo", "chat", "--reason", "slower since")

    assert (status, err) == (0, "")
    assert "max_num_seqs 64 -> 32" in out
    assert "undoes the promotion at 2026-11-20 12:00 UTC: slower since" in out
    assert out.splitlines()[-1] == "It needs approval: `flettner approve chat-s1`"
    assert run("undo", "chat")[0] == 2  # the journal keeps a reason
    run("pause", "chat")
    assert run("undo", "chat", "--reason", "slower since")[1].endswith(
        "`flettner approve chat-s2`, once the pause has ended: `flettner resume chat`\n"
    )


def test_refuses_to_abort_a_promoted_rollout(run: Run, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    run("approve", made.id, "--digest", made.digest)
    daemon.settle(promoted=True)

    status, _, err = run("abort", "chat")

    assert status == 1
    assert "propose the values before it (`flettner undo`)" in err


def test_pause_and_resume(run: Run, daemon: FakeDaemonView) -> None:
    assert run("pause", "chat") == (0, "chat is paused\n", "")
    assert daemon.targets()["chat"].state.paused
    assert run("resume", "chat") == (0, "chat is not paused\n", "")
    assert run("pause", "nowhere")[0] == 1


def test_viewer_can_read_but_not_act(run: Run, tmp_path: Path) -> None:
    token = ("--token-file", str(tmp_path / "viewer"))

    assert run("status", *token)[0] == 0
    status, _, err = run("pause", "chat", *token)
    assert status == 1
    assert "role operator" in err


def test_refusal_without_a_token_explains_how_to_get_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLETTNER_TOKEN_FILE")

    status, _, err = run("status")

    assert status == 1
    assert "flettner token new" in err


def test_reads_the_token_from_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLETTNER_TOKEN", (tmp_path / "operator").read_text())
    monkeypatch.setenv("FLETTNER_TOKEN_FILE", "/nowhere")

    assert run("status")[0] == 0


def test_escapes_terminal_control_sequences_from_a_server(run: Run, daemon: FakeDaemonView) -> None:
    daemon.set(replace(daemon.targets()["chat"].state, note="\x1b]0;owned\x07\x9b2J\u202e"))

    _, out, _ = run("status")

    assert "\\x1b]0;owned\\x07\\x9b2J\\u202e" in out
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(out)


def test_accepts_a_unix_socket_as_address(
    run: Run, daemon: FakeDaemonView, tokens: Tokens, tmp_path: Path
) -> None:
    listen = f"unix:{tmp_path / 'api.sock'}"
    with served(daemon, tokens, listen):
        status, out, _ = run("status", "--url", listen)

    assert status == 0
    assert "chat" in out


def test_tries_the_daemons_socket_first(
    daemon: FakeDaemonView, tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    where = f"unix:{tmp_path / 'api.sock'}"
    monkeypatch.setattr(flettner.agent.api.client, "SOCKET", where)
    monkeypatch.delenv("FLETTNER_URL")
    monkeypatch.delenv("FLETTNER_TOKEN_FILE")

    assert find_default_url() == LOOPBACK
    with served(daemon, tokens, where, PeerIdentities({}, {})):
        assert find_default_url() == where
        status, out, _ = run("pause", "chat")  # the daemon's own user needs no token

    assert (status, out) == (0, "chat is paused\n")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:1", 3),
        ("unix:/nowhere/api.sock", 3),
        ("ftp://x", 2),
        ("127.0.0.1:8090", 2),
        ("http://x:port", 2),
        ("http://", 2),
    ],
)
def test_unreachable_daemon_error_names_the_remedy(run: Run, url: str, expected: int) -> None:
    status, out, err = run("status", "--url", url)

    assert (status, out) == (expected, "")
    assert "--url" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("text", ["", "two words", "t\u00f6ken", "fl_\x07"])
def test_names_a_token_file_without_a_token(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "mine").write_text(text)

    status, _, err = run("status", "--token-file", str(tmp_path / "mine"))

    assert status == 2
    assert str(tmp_path / "mine") in err


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"SSH-2.0-OpenSSH\r\n",
        b"",
    ],
)
def test_reports_a_response_that_is_not_from_flettner(run: Run, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        status, out, err = run("status", "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()

    assert (status, out) == (3, "")
    assert "--url" in err
