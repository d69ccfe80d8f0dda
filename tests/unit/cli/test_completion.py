"""Completion of commands, options and values in a real bash."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from flettner.agent.api import client
from flettner.agent.config import listen
from tests.support.answering import answering
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.cli.conftest import Run, runs

ASK = """
source "$1"
shift
function=$(complete -p flettner | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
"$function"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def completion(capsys: pytest.CaptureFixture[str]) -> Run:
    return runs(capsys, "completion")


@pytest.fixture
def script(completion: Run, tmp_path: Path) -> Path:
    path = tmp_path / "flettner"
    status, out, err = completion("bash")
    assert (status, err) == (0, "")
    path.write_text(out)
    return path


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("st",), {"status"}),
        (("r",), {"reload", "report", "resume", "revert", "rollouts", "run"}),
        (("audit", "ve"), {"verify"}),
        (("rollouts", "--out"), {"--outcome"}),
        (("rollouts", "--outcome", ""), {"running", "promoted", "rolled_back"}),
        (("status", "--w"), {"--watch"}),
        (("token", "new", "--role", "o"), {"operator"}),
        (("completion", ""), {"bash", "zsh", "fish"}),
        (("check", "FOLDER/"), {"FOLDER/flettner.toml"}),
        (("run", "--config", "FOLDER/fl"), {"FOLDER/flettner.toml"}),
    ],
)
def test_completes_in_bash(script: Path, tmp_path: Path, typed: tuple[str, ...], expected: set[str]) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "flettner.toml").touch()
    words = [word.replace("FOLDER", str(folder)) for word in typed]

    assert completed(script, *words) == {word.replace("FOLDER", str(folder)) for word in expected}


def completed(script: Path, *words: str, env: Mapping[str, str] | None = None) -> set[str]:
    """Return the completions of the last word in bash."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", ASK, "bash", script, "flettner", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PATH": path, **(env or {})},
    )
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("approve", ""), {"chat-s2"}),
        (("deny", "chat-"), {"chat-s2"}),
        (("deny", "code-"), set()),
        (("rollouts", ""), {"chat-o1"}),
        (("audit", "show", "--op", ""), {"chat-o1"}),
        (("abort", "c"), {"chat"}),
        (("suggestions", "--target", ""), {"chat"}),
        (("status", ""), {"chat"}),
    ],
)
def test_completes_names_from_the_daemon_in_bash(
    run: Run, daemon: FakeDaemonView, script: Path, typed: tuple[str, ...], expected: set[str]
) -> None:
    made = daemon.suggest({"max_num_seqs": 128})
    run("approve", made.id, "--digest", made.digest)
    daemon.settle(promoted=True)
    daemon.suggest({"max_num_seqs": 96})

    assert completed(script, *typed) == expected


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({"FLETTNER_URL": "http://127.0.0.1:1"}, id="no daemon"),
        pytest.param({"FLETTNER_URL": "not an address"}, id="no address"),
        pytest.param({"FLETTNER_TOKEN": "fl_wrong"}, id="wrong token"),
        pytest.param({"FLETTNER_TOKEN_FILE": "/nowhere"}, id="no token file"),
    ],
)
@pytest.mark.usefixtures("run")
def test_completes_no_names_without_a_daemon(script: Path, env: Mapping[str, str]) -> None:
    assert completed(script, "status", "", env=env) == set()


HOSTILE = b'{"targets": [{"name": "$(touch harm)"}, {"name": "chat"}, {"name": "-rf"}]}'


def test_completed_names_cannot_inject_shell_commands(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with answering(lambda *_: (200, HOSTILE)) as url:
        assert completed(script, "status", "", env={"FLETTNER_URL": url}) == {"chat"}
    assert not (tmp_path / "harm").exists()


def test_completion_does_not_load_the_config() -> None:
    code = (
        "import sys; from flettner.tools.cli.dispatch import parser; "
        "parser('ids'); print('flettner.agent.config.loader' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
    assert str(listen.SOCKET) == client.SOCKET


@pytest.mark.parametrize(("shell", "begins"), [("zsh", "#compdef flettner"), ("fish", "# AUTOMATICALLY")])
def test_other_shells_have_their_own_script(completion: Run, shell: str, begins: str) -> None:
    status, out, _ = completion(shell)

    assert status == 0
    assert out.startswith(begins)
    assert all(word in out for word in ("rollouts", "rolled_back", "watch"))


def test_unknown_shell_is_a_usage_error(completion: Run) -> None:
    assert completion("tcsh")[0] == 2
