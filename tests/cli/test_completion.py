"""A real bash completes trimtab's commands, options and values."""

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Run, runs

ASK = """
source "$1"
shift
function=$(complete -p trimtab | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
"$function"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def completion(capsys: pytest.CaptureFixture[str]) -> Run:
    return runs("completion", capsys)


@pytest.fixture
def script(completion: Run, tmp_path: Path) -> Path:
    path = tmp_path / "trimtab"
    status, out, err = completion("bash")
    assert (status, err) == (0, "")
    path.write_text(out)
    return path


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("st",), {"status"}),
        (("r",), {"resume", "revert", "rollouts", "run"}),
        (("audit", "ve"), {"verify"}),
        (("rollouts", "--out"), {"--outcome"}),
        (("rollouts", "--outcome", ""), {"running", "promoted", "rolled_back"}),
        (("status", "--w"), {"--watch"}),
        (("token", "new", "--role", "o"), {"operator"}),
        (("completion", ""), {"bash", "zsh", "fish"}),
        (("check", "FOLDER/"), {"FOLDER/trimtab.toml"}),
        (("run", "--config", "FOLDER/tr"), {"FOLDER/trimtab.toml"}),
    ],
)
def test_bash_completes(script: Path, tmp_path: Path, typed: tuple[str, ...], expected: set[str]) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "trimtab.toml").touch()
    words = [word.replace("FOLDER", str(folder)) for word in typed]

    done = subprocess.run(
        ["bash", "-c", ASK, "bash", script, "trimtab", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stderr == ""
    assert set(done.stdout.split()) == {word.replace("FOLDER", str(folder)) for word in expected}


@pytest.mark.parametrize(("shell", "begins"), [("zsh", "#compdef trimtab"), ("fish", "# AUTOMATICALLY")])
def test_other_shells_have_their_own(completion: Run, shell: str, begins: str) -> None:
    status, out, _ = completion(shell)

    assert status == 0
    assert out.startswith(begins)
    assert all(word in out for word in ("rollouts", "rolled_back", "watch"))


def test_an_unknown_shell_is_bad_usage(completion: Run) -> None:
    assert completion("tcsh")[0] == 2
