"""`--watch`, `--wait` and `flettner top` in a terminal and in a pipe."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flettner.agent.api.tokens import Tokens
from flettner.agent.domain.events import Approved, Denied
from flettner.tools.cli.resource_text import format_rollouts
from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.rig import FLETTNER
from tests.support.served_api import served
from tests.unit.cli.conftest import Run
from tests.unit.cli.terminals import plain, terminal

IN_TERMINAL = pytest.mark.parametrize("key", ["q", "\x03"])


@contextmanager
def piped(*argv: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*FLETTNER, *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.usefixtures("run")
@IN_TERMINAL
def test_watched_status_redraws_and_ends_cleanly(daemon: FakeDaemonView, key: str) -> None:
    with terminal("status", "--watch", columns=100) as window:
        window.until("observing")
        daemon.set(replace(daemon.targets()["chat"].state, note="looked at by ann"))
        window.until("looked at by ann")
        window.type(key)
        status, text = window.end()

    assert status == 0
    assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1
    assert text.endswith("\x1b[?25h\x1b[?1049l")
    assert "Traceback" not in text


@pytest.mark.usefixtures("run")
def test_prints_a_line_per_change_without_a_terminal(daemon: FakeDaemonView) -> None:
    with piped("status", "--watch") as process:
        assert line_of(process) == "chat: observing, chat-r0 blue\n"
        daemon.suggest({"max_num_seqs": 128})
        assert line_of(process) == "chat: proposed, chat-r0 blue, chat-s1 needs approval\n"
        process.send_signal(2)
        assert process.wait(60) == 0


@pytest.mark.usefixtures("run")
def test_watched_json_prints_a_document_per_change(daemon: FakeDaemonView) -> None:
    with piped("status", "--watch", "--json") as process:
        assert json.loads(line_of(process))["phase"] == "observing"
        daemon.suggest({"max_num_seqs": 128})
        assert json.loads(line_of(process))["phase"] == "proposed"


def test_lists_rollouts(run: Run, daemon: FakeDaemonView) -> None:
    assert run("rollouts") == (0, "no rollouts\n", "")

    made = daemon.suggest({"max_num_seqs": 128})
    run("approve", made.id, "--digest", made.digest)

    head, row = run("rollouts")[1].splitlines()
    columns = ["ID", "TARGET", "STATE", "STEP", "EXPOSED", "BAD", "FAILED", "STALLED", "LOST", "STARTED"]
    assert head.split() == columns
    assert row.split()[:4] == ["chat-o1", "chat", "launching", "1"]
    document = json.loads(run("rollouts", "chat-o1", "--json")[1])
    assert document["id"] == "chat-o1"
    assert format_rollouts([{**document, "lost": 3}]).splitlines()[1].split()[-4] == "3"
    assert run("rollouts", "--outcome", "promoted")[1] == "no rollouts\n"
    assert run("rollouts", "chat-o9")[0] == 1


@pytest.mark.usefixtures("run")
def test_watches_a_rollout_until_it_ends(run: Run, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    run("approve", made.id, "--digest", made.digest)

    with piped("rollouts", "--watch") as process:
        assert line_of(process).startswith("chat-o1 running: launching, step 1 of ")
        daemon.settle(promoted=True)
        assert line_of(process) == "chat-o1 promoted, judged\n"


@pytest.mark.parametrize(("promoted", "expected"), [(True, 0), (False, 1)])
def test_approval_waits_for_the_verdict(
    run: Run, daemon: FakeDaemonView, promoted: bool, expected: int
) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    timer = threading.Timer(0.5, lambda: settle_begun(daemon, promoted=promoted))
    timer.start()

    status, out, err = run("approve", made.id, "--digest", made.digest, "--wait")
    timer.join()

    assert status == expected
    assert out.startswith(f"chat-o1 {'promoted' if promoted else 'rolled back'}, judged; ended at 20")
    assert err.startswith("chat-o1 running: launching, step 1 of ")


@pytest.mark.parametrize(("denied", "expected"), [(True, 1), (False, 0)])
def test_approval_waits_for_the_windows_to_open(
    run: Run, daemon: FakeDaemonView, denied: bool, expected: int
) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    state = daemon.targets()["chat"].state
    waiting = replace(made, approved_by="operator bob")
    daemon.set(replace(state, suggestions=replace(state.suggestions, open=(waiting,))))

    def end() -> None:
        if denied:
            event = Denied(at=daemon.at, actor="bob", suggestion=made.id, reason="not now")
            daemon.set(daemon._after(daemon.targets()["chat"].state, event))
            return
        daemon.set(
            daemon._approved(
                state, Approved(at=daemon.at, actor="bob", suggestion=made.id, digest=made.digest)
            )
        )
        daemon.settle(promoted=True)

    timer = threading.Timer(0.5, end)
    timer.start()

    status, out, err = run("approve", made.id, "--digest", made.digest, "--wait")
    timer.join()

    assert status == expected
    assert err.startswith("chat-s1 is approved, and starts when the windows open ...\n")
    assert ("chat-s1 is denied by bob" in err, "chat-o1 promoted" in out) == (denied, not denied)


def settle_begun(daemon: FakeDaemonView, *, promoted: bool) -> None:
    while not daemon.rollouts():
        threading.Event().wait(0.05)
    daemon.settle(promoted=promoted)


def test_abort_waits_until_the_rollback_ends(run: Run, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    run("approve", made.id, "--digest", made.digest)
    timer = threading.Timer(0.5, lambda: daemon.settle(promoted=False))
    timer.start()

    status, out, _ = run("abort", "chat", "--wait", "--json")
    timer.join()

    assert (status, json.loads(out)["outcome"]) == (0, "rolled_back")


@pytest.mark.usefixtures("run")
def test_terminal_shows_progress_on_one_line(daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})

    with terminal("approve", made.id, "--wait", columns=60) as window:
        window.until("[y/N]")
        window.type("y\n")
        window.until("\x1b[K")
        daemon.settle(promoted=True)
        status, text = window.end()

    assert status == 0
    assert "\rchat-o1 promoted" in text


@pytest.mark.usefixtures("run")
@IN_TERMINAL
def test_top_shows_every_target_live(daemon: FakeDaemonView, key: str) -> None:
    with terminal("top", columns=140) as window:
        first = plain(window.until("q quits"))
        daemon.suggest({"max_num_seqs": 128})
        window.until("proposed")
        window.type(key)
        status, _ = window.end()

    assert status == 0
    for cell in ("SLO MET", "QUEUE", "KV", "chat", "observing", "7.5/s", "420 ms"):
        assert cell in first


def test_top_prints_once_without_a_terminal(run: Run) -> None:
    status, out, _ = run("top")

    assert status == 0
    assert out.splitlines()[1].split()[:5] == ["chat", "observing", "-", "7.5/s", "-"]
    assert json.loads(run("top", "--json")[1])["targets"][0]["name"] == "chat"


def test_unreachable_daemon_ends_a_watch_only_at_its_start() -> None:
    with piped("status", "--watch", "--url", "http://127.0.0.1:1") as process:
        assert process.wait(60) == 3


@pytest.mark.usefixtures("run")
def test_watch_survives_a_daemon_restart(daemon: FakeDaemonView, tokens: Tokens, tmp_path: Path) -> None:
    listen = f"unix:{tmp_path / 'api.sock'}"
    with ExitStack() as first:
        first.enter_context(served(daemon, tokens, listen))
        with piped("status", "--watch", "--url", listen) as process:
            line_of(process)
            first.close()
            assert process.stderr is not None
            assert "no daemon answers" in process.stderr.readline()
            daemon.suggest({"max_num_seqs": 128})
            with served(daemon, tokens, listen):
                assert line_of(process).startswith("chat: proposed, ")
                process.send_signal(2)
                assert process.wait(60) == 0


@pytest.mark.usefixtures("run")
def test_closed_pipe_ends_a_watch(daemon: FakeDaemonView) -> None:
    with piped("status", "--watch") as process:
        line_of(process)
        assert process.stdout is not None
        os.close(os.dup(process.stdout.fileno()))
        process.stdout.close()
        daemon.suggest({"max_num_seqs": 128})
        assert process.wait(60) == 0
