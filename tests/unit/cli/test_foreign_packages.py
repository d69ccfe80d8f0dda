"""Foreign packages with the names of our folders, on PYTHONPATH or in the current folder, change nothing."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
FOLDERS = sorted(link.name for link in (REPOSITORY / "flettner").iterdir() if link.is_symlink())
FOREIGN = "raise SystemExit(f'{__name__} of another project')\n"


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A project with a package for each folder of flettner."""
    for name in FOLDERS:
        package = tmp_path / "project" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(FOREIGN)
    return tmp_path / "project"


def installed(command: str, folder: Path) -> Path:
    """Return the script of a command, as pip writes it from pyproject.toml."""
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        module, _, function = tomllib.load(file)["project"]["scripts"][command].partition(":")
    script = folder / command
    script.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    return script


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", ["flettner", "flettner-docker-proxy", ""])
def test_an_installed_command_imports_its_own_packages(command: str, tmp_path: Path, foreign: Path) -> None:
    """Also the module, in a folder with others."""
    words = (str(installed(command, tmp_path)),) if command else ("-m", "flettner")
    done = run(*words, "--help", folder=foreign)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {command or 'flettner'} ")


def test_every_command_loads_its_own_plugins(tmp_path: Path, foreign: Path) -> None:
    done = run(str(installed("flettner", tmp_path)), "policies", "--json", folder=foreign)

    assert (done.returncode, done.stderr) == (0, "")
    assert '"admission"' in done.stdout
