"""Typing errors, missing options, pipes and interrupts."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.rig import FLETTNER
from tests.unit.cli.conftest import Run
from tests.unit.cli.terminals import plain, terminal
from tests.unit.cli.test_watch import line_of, piped

WHY = "100 % passed: green is not worse after 82 requests in 10 s, and better at requests that miss the SLO"


def rolled_out(run: Run, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 64 + len(daemon.suggestions())}, why="3 requests wait")
    assert run("approve", made.id, "--digest", made.digest)[0] == 0
    daemon.settle(promoted=True)
    state = daemon.targets()["chat"].state
    assert state.rollout is not None
    daemon.set(replace(state, rollout=replace(state.rollout, why=WHY)))


def test_missing_command_lists_the_commands(run: Run) -> None:
    status, out, err = run()

    assert (status, out) == (2, "")
    assert "flettner init" in err
    listed = [line.split()[0] for line in err.splitlines() if line.startswith("    ") and line[4] != " "]
    assert listed == sorted(listed)
    assert {"status", "approve", "top"} <= set(listed)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["stauts"], "unknown 'stauts'; did you mean status?"),
        (["rollback"], "unknown 'rollback'; see `flettner abort`"),
        (["promote", "chat"], "unknown 'promote'; see `flettner approve`"),
        (["frobnicate"], "unknown 'frobnicate'; `flettner --help` lists the choices"),
        (["audit", "verfy"], "unknown 'verfy'; did you mean verify?"),
        (["rollouts", "--outcome", "?"], "unknown '?'; choose from running, promoted, rolled_back"),
    ],
)
def test_mistyped_word_gets_a_suggestion(run: Run, words: list[str], expected: str) -> None:
    status, _, err = run(*words)

    assert status == 2
    assert err.splitlines()[-1].endswith(expected)


@pytest.mark.parametrize("words", [("check", "-c", "flettner.toml"), ("status", "chat", "-c")])
def test_unknown_option_is_named_with_its_command(run: Run, words: tuple[str, ...]) -> None:
    assert run(*words) == (2, "", f"flettner: -c: not an argument of `flettner {words[0]}`; see its --help\n")


def test_each_help_starts_with_its_summary(run: Run) -> None:
    shown = " ".join(run("lint", "--help")[1].split())

    assert "Check a vllm serve command line for problems. Exit status 0: no findings" in shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("approve", "chat-s1", "--digest", "abc"), "'abc' is not a digest"),
        (("deny", "chat-s1", "--reason", " "), "is empty"),
    ],
)
def test_invalid_value_is_reported_in_terms_of_the_option(
    run: Run, words: tuple[str, ...], expected: str
) -> None:
    status, _, err = run(*words)

    assert status == 2
    assert expected in err


def test_missing_token_error_explains_how_to_send_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLETTNER_TOKEN_FILE")

    status, _, err = run("status")

    assert status == 1
    assert err.startswith("flettner: no token was sent: name one with --token-file or FLETTNER_TOKEN")


def test_unknown_name_error_names_a_command(run: Run) -> None:
    assert run("rollouts", "nope")[2].endswith("`flettner rollouts` lists them.\n")


def test_error_wraps_between_words_in_a_terminal() -> None:
    with terminal("status", "--url", "http://127.0.0.1:1", columns=60) as window:
        status, text = window.end()

    lines = plain(text).splitlines()
    assert status == 3
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60
    assert " ".join(" ".join(lines).split()).endswith("Name another address with --url or FLETTNER_URL")


@pytest.mark.usefixtures("run")
def test_watch_ends_if_its_pipe_closes_without_changes() -> None:
    with piped("status", "--watch") as process:
        line_of(process)
        assert process.stdout is not None
        process.stdout.close()

        assert process.wait(60) == 0


@pytest.mark.usefixtures("run")
def test_reports_a_full_disk() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*FLETTNER, "status"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert done.returncode == 2
    assert done.stderr == "flettner: cannot write the output: No space left on device\n"


def test_rollout_list_shortens_the_reason_and_a_single_rollout_shows_it_in_full(
    run: Run, daemon: FakeDaemonView
) -> None:
    for _ in range(2):
        rolled_out(run, daemon)

    with terminal("rollouts", columns=80) as window:
        both = plain(window.end()[1]).splitlines()
    with terminal("rollouts", "chat-o1", columns=80) as window:
        single = plain(window.end()[1]).splitlines()

    assert both[-2:] == [f"{name}: {WHY}"[:79] + "…" for name in ("chat-o2", "chat-o1")]
    assert " ".join(" ".join(single).split()).endswith(f" chat-o1: {WHY}")


def test_interrupted_wait_reports_that_the_rollout_continues(run: Run, daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    run("approve", made.id, "--digest", made.digest)

    with terminal("abort", "chat", "--wait") as window:
        window.until("chat-o1 running")
        window.type("\x03")
        status, text = window.end()

    assert status == 130
    assert plain(text).endswith("flettner: chat-o1 continues; `flettner rollouts chat-o1 --watch` shows it\n")
