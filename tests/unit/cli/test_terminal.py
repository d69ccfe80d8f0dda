"""Terminal output and exit statuses of the commands."""

import argparse
from collections.abc import Iterator

import pytest

from flettner.tools.cli.dispatch import parser
from flettner.tools.cli.exits import EXITS
from flettner.tools.terminal.tables import format_table
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.cli.conftest import Run
from tests.unit.cli.terminals import plain, terminal

NO_JSON = {
    "bundle": "writes a file; that is JSON",
    "detach": "says what it did, once, before flettner is removed",
    "completion": "prints a shell script",
    "audit export": "has its own machine-readable formats",
    "ids": "prints names for shell completion, one per line",
    "init": "writes a config",
    "report": "writes a page",
    "revert": "command of the systemd unit that logs its actions",
    "run": "the daemon; it logs JSON without a terminal",
}


def commands(
    parser: argparse.ArgumentParser, path: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    inner = [
        action
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)  # has no public name
    ]
    if not inner:
        yield path, parser
    for action in inner:
        for name, inner in action.choices.items():
            yield from commands(inner, f"{path} {name}".strip())


def test_every_command_with_output_has_json() -> None:
    lacking = {name for name, command in commands(parser()) if "--json" not in command._option_string_actions}

    assert lacking == set(NO_JSON)


def test_help_lists_the_exit_statuses() -> None:
    expected = parser().format_help()

    assert all(f"\n  {code} " in expected for code in EXITS)


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("columns", [60, 80, 132])
def test_table_fits_the_terminal_without_loss(daemon: FakeDaemonView, columns: int) -> None:
    why = "the queue grows: 3 requests wait and the KV cache is at 22 percent only"
    daemon.suggest({"max_num_seqs": 128, "max_num_batched_tokens": 8192}, why=why)

    with terminal("suggestions", columns=columns) as window:
        status, text = window.end()

    shown = plain(text)
    assert status == 0
    assert max(map(len, shown.splitlines())) <= columns
    assert all(word in shown for word in why.split() if len(word) <= 10)


def test_prints_one_line_per_row_without_a_terminal(
    run: Run, daemon: FakeDaemonView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    daemon.suggest({"max_num_seqs": 128}, why="wait " * 50)

    assert len(run("suggestions")[1].splitlines()) == 2
    assert len(format_table(("A", "B"), [("x" * 90, "y" * 90)]).splitlines()) == 2


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("env", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_uses_colours_only_on_terminals_that_support_them(env: dict[str, str], is_coloured: bool) -> None:
    with terminal("status", env=env) as window:
        status, text = window.end()

    assert status == 0
    assert ("\x1b[" in text) is is_coloured


def test_writes_no_colours_to_a_pipe(run: Run) -> None:
    assert "\x1b" not in run("status")[1]


@pytest.mark.usefixtures("run")
def test_ctrl_c_ends_a_command_without_a_traceback(daemon: FakeDaemonView) -> None:
    made = daemon.suggest({"max_num_seqs": 128})

    with terminal("approve", made.id) as window:
        window.until("[y/N]")
        window.type("\x03")
        status, text = window.end()

    assert status == 130
    assert "Traceback" not in text
    assert daemon.suggestions()[0].status == "open"
