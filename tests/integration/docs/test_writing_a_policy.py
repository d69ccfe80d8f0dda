"""The steps of docs/writing-a-policy.md, with every file and command, produce the example."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]
GUIDE = REPOSITORY / "docs" / "writing-a-policy.md"
EXAMPLE = REPOSITORY / "examples" / "queue-limit"
UV = REPOSITORY / ".cache" / "uv" / "bin"
BLOCK = re.compile(r"(?:^`([^`\n]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(command: str, at: Path, environment: dict[str, str]) -> str:
    """Run one shell line; AssertionError with its output if it fails."""
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=at,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name: the path of a unix socket in it has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        yield Path(folder)


@pytest.mark.timeout(600)
def test_every_command_of_the_guide_works_and_produces_the_example(short: Path) -> None:
    own = short / "environment"
    tools = f"{Path(sys.executable).parent}:{UV}:{os.environ['PATH']}"
    packages = own / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    environment = {**os.environ, "PATH": tools, "VIRTUAL_ENV": str(own), "PYTHONPATH": str(packages)}
    run(f"uv venv -q --python {sys.executable} {own}", short, environment)
    at, output = short, ""

    for file, kind, text in BLOCK.findall(GUIDE.read_text()):
        if file:
            (at / file).write_text(text)
        elif kind == "sh":
            for command in text.splitlines():
                output += run(command, at, environment)
                at = at / command.removeprefix("cd ") if command.startswith("cd ") else at

    assert "queue_limit (of " in output
    assert "queue_limit (of the package acme-queue-limit 1.0.0): Answers 503 early" in output
    assert "flettner.toml: ready to run" in output
    assert " passed" in output
    for name in ("pyproject.toml", "test_queue_limit.py", "queue_limit/__init__.py"):
        example = (EXAMPLE / name).read_text().replace("  # noqa: INP001", "")  # a matter of this repository
        assert (at / name).read_text() == example, f"{name} of the example is another"
