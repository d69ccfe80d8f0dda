"""`flettner rollouts ID --log` prints the log of the rollout's new server."""

import json
from dataclasses import replace

import pytest

from flettner.agent.domain.model import Server
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.cli.conftest import Run


@pytest.fixture
def rollout(run: Run, daemon: FakeDaemonView) -> str:
    """The id of a rollout that has just started."""
    made = daemon.suggest({"max_num_seqs": 128})
    assert run("approve", made.id, "--digest", made.digest)[0] == 0
    state = daemon.targets()["chat"].state
    greens = (Server(name="chat-r1", setting={}),)
    daemon.set(replace(state, rollout=replace(state.canary, greens=greens)))
    return "chat-o1"


def test_prints_the_last_lines(run: Run, daemon: FakeDaemonView, rollout: str) -> None:
    daemon.targets()["chat"].logs["chat-r1"] = ("loading weights", "\tcapturing graphs")

    assert run("rollouts", rollout, "--log") == (0, "loading weights\n        capturing graphs\n", "")
    answer = json.loads(run("rollouts", rollout, "--log", "--json")[1])
    assert (answer["server"], answer["lines"][0]) == ("chat-r1", "loading weights")


def test_escapes_terminal_control_sequences(run: Run, daemon: FakeDaemonView, rollout: str) -> None:
    daemon.targets()["chat"].logs["chat-r1"] = ("\x1b]0;owned\x07\x9b2J\u202e",)

    _, out, _ = run("rollouts", rollout, "--log")

    assert out == "\\x1b]0;owned\\x07\\x9b2J\\u202e\n"


def test_reports_the_reason_for_an_empty_log(run: Run, daemon: FakeDaemonView, rollout: str) -> None:
    silent = run("rollouts", rollout, "--log")
    daemon.targets()["chat"].unreadable = "docker: no Engine"
    unreadable = run("rollouts", rollout, "--log")

    assert silent == (1, "", "flettner: chat-r1 has written nothing.\n")
    assert unreadable == (1, "", "flettner: It cannot be read: docker: no Engine\n")


def test_requires_a_target_or_rollout(run: Run) -> None:
    status, out, err = run("rollouts", "--log")

    assert (status, out) == (2, "")
    assert "name the rollout" in err
    assert run("rollouts", "chat-o1", "--log", "--watch")[0] == 2


def test_refuses_an_unknown_rollout(run: Run) -> None:
    status, out, err = run("rollouts", "chat-o9", "--log")

    assert (status, out) == (1, "")
    assert "There is no rollout 'chat-o9'" in err
