"""A full-screen command restores the terminal in every case."""

import os
import signal
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest

from flettner.agent.api.tokens import Tokens
from flettner.agent.domain.state import State
from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.served_api import served
from tests.unit.cli.terminals import Terminal, plain, terminal

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[0m\x1b[?25h\x1b[?1049l"
COMMANDS = pytest.mark.parametrize(
    "command", [("top",), ("status", "--watch"), ("rollouts", "--watch")], ids=" ".join
)
SHELL = ("bash", "-c", 'stty -g; "$@"; echo "status $?"; stty -g', "bash")
IGNORING_SIGHUP = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
BREAKS = """
from flettner.tools.cli.watch import watch

def looks():
    yield "all is well"
    raise ValueError("a mistake")

watch(looks().__next__, dict)
"""


def child(window: Terminal) -> int:
    shell = window.process.pid
    return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])


@pytest.mark.usefixtures("run")
@COMMANDS
@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 0)]
)
def test_signal_during_a_watch_restores_the_terminal(
    command: tuple[str, ...], number: signal.Signals, expected: int
) -> None:
    with terminal(*command, through=SHELL) as window:
        window.until("q quits")
        os.kill(child(window), number)
        _, text = window.end()

    before, _, rest = text.partition("\r\n")
    drawn, _, after = rest.rpartition(LEAVE)
    assert drawn.count(ENTER) == 1
    assert LEAVE not in drawn
    assert "Traceback" not in after
    assert after.splitlines()[-2:] == [f"status {expected}", before]


def test_internal_error_restores_the_terminal_before_its_report() -> None:
    with terminal(through=(*SHELL, sys.executable, "-c", BREAKS)) as window:
        _, text = window.end()

    before, _, rest = text.partition("\r\n")
    drawn, _, after = rest.rpartition(LEAVE)
    assert drawn.count(ENTER) == 1
    assert "Traceback" not in drawn
    assert after.splitlines()[-3:] == ["ValueError: a mistake", "status 1", before]


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("keys", ["q", "qq", "\x1b", "\x04"], ids=["q", "q twice", "Esc", "Ctrl-D"])
def test_quit_keys_end_the_screen_and_arrow_keys_do_not(keys: str) -> None:
    with terminal("top") as window:
        window.until("q quits")
        window.type("\x1b[A")
        window.type(keys)
        status, text = window.end()

    assert status == 0
    assert text.endswith(LEAVE)


@pytest.mark.usefixtures("run")
def test_ctrl_z_restores_the_terminal_until_resume() -> None:
    with terminal("top") as window:
        window.until("q quits")
        window.type("\x1a")
        window.until(LEAVE)
        _, how = os.waitpid(window.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(how)

        window.process.send_signal(signal.SIGCONT)
        assert "observing" in plain(window.until("q quits"))
        window.type("q")
        assert window.end()[0] == 0


@pytest.mark.usefixtures("run")
def test_closed_terminal_ends_the_screen_without_a_signal() -> None:
    with terminal("top", through=IGNORING_SIGHUP) as window:
        window.until("q quits")
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), window.keyboard)
        assert window.process.wait(60) == 0


def test_shows_an_unreachable_daemon_below_the_last_state(
    daemon: FakeDaemonView, tokens: Tokens, tmp_path: Path
) -> None:
    listen = f"unix:{tmp_path / 'api.sock'}"
    token = ("--token-file", str(tmp_path / "operator"))
    with served(daemon, tokens, listen), terminal("top", "--url", listen, *token) as window:
        window.until("q quits")
        (tmp_path / "api.sock").unlink()
        shown = plain(window.until("no response, trying again: no daemon answers"))
        window.type("q")
        assert window.end()[0] == 0
    assert "observing" in shown


@pytest.mark.usefixtures("run")
def test_prints_lines_on_a_terminal_without_cursor_control() -> None:
    with terminal("status", "--watch", env={"TERM": "dumb"}) as window:
        assert window.until("\n") == "chat: observing, chat-r0 blue\r\n"
        window.process.send_signal(signal.SIGINT)
        assert window.end() == (0, "chat: observing, chat-r0 blue\r\n")


@pytest.mark.usefixtures("run")
def test_redraws_after_a_resize(daemon: FakeDaemonView) -> None:
    daemon.set(
        replace(daemon.targets()["chat"].state, note="nothing is suggested: 12 requests run and none waits")
    )
    with terminal("top", columns=120) as window:
        window.until("q quits")
        termios.tcsetwinsize(window.keyboard, (24, 40))
        shown = plain(window.until("q quits")).splitlines()
        window.type("q")
        window.end()

    assert max(map(len, shown)) <= 40
    assert "  run and none waits" in shown


@pytest.mark.usefixtures("run")
def test_counts_rows_beyond_the_screen(daemon: FakeDaemonView) -> None:
    for number in range(40):
        daemon.set(State(target=f"target-{number:02}"))

    with terminal("top") as window:
        shown = plain(window.until("q quits")).splitlines()
        window.type("q")
        window.end()

    assert len(shown) == 24
    assert shown[-2] == f"... {1 + 41 + 2 - 22} more lines"
