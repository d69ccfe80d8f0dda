"""Fixtures of the tests of commands."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.cli import main
from tests.cli.advising import Advise


def runs(command: str, capsys: pytest.CaptureFixture[str]) -> Advise:
    """Run the command: (exit status, stdout, stderr)."""

    def run(*argv: str) -> tuple[int, str, str]:
        try:
            status = main((command, *argv))
        except SystemExit as end:  # argparse
            status = int(end.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture
def advise(capsys: pytest.CaptureFixture[str]) -> Advise:
    return runs("advise", capsys)


@pytest.fixture
def lint(capsys: pytest.CaptureFixture[str]) -> Advise:
    return runs("lint", capsys)


@pytest.fixture
def scrapes(tmp_path: Path) -> Callable[[bytes, bytes], tuple[str, ...]]:
    """The options that name two saved pages."""

    def save(first: bytes, second: bytes) -> tuple[str, ...]:
        (tmp_path / "a.prom").write_bytes(first)
        (tmp_path / "b.prom").write_bytes(second)
        return "--scrape", str(tmp_path / "a.prom"), "--scrape", str(tmp_path / "b.prom")

    return save
