"""Fixtures of the tests of commands."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from flettner.agent.api.tokens import Tokens
from flettner.tools.cli.dispatch import main
from tests.support.api_tokens import store_roles
from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.served_api import served
from tests.unit.sensors.pages import LATER, PAGE, with_values

Run = Callable[..., tuple[int, str, str]]
Advise = Run
Options = tuple[str, ...]
Scrapes = Callable[[bytes, bytes], Options]
QUEUE = {"num_requests_running": 2.0, "num_requests_waiting": 14.0, "kv_cache_usage_perc": 0.01}
"""A queue behind a cap of 2, on a page of real vLLM."""
FLAGS = "vllm serve tiny --max-num-seqs 2"


def runs(capsys: pytest.CaptureFixture[str], *command: str, options: Sequence[str] = ()) -> Run:
    """Run the command with further words, and the options after them: (exit status, stdout, stderr)."""

    def run(*argv: str) -> tuple[int, str, str]:
        try:
            status = main((*command, *argv, *options))
        except SystemExit as end:  # argparse
            status = int(end.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def advise(capsys: pytest.CaptureFixture[str]) -> Advise:
    return runs(capsys, "advise")


@pytest.fixture
def lint(capsys: pytest.CaptureFixture[str]) -> Advise:
    return runs(capsys, "lint")


@pytest.fixture
def scrapes(tmp_path: Path) -> Scrapes:
    """Save two metrics pages and return the options that name them."""

    def save(first: bytes, second: bytes) -> Options:
        (tmp_path / "a.prom").write_bytes(first)
        (tmp_path / "b.prom").write_bytes(second)
        return "--scrape", str(tmp_path / "a.prom"), "--scrape", str(tmp_path / "b.prom")

    return save


@pytest.fixture
def queued(scrapes: Scrapes) -> Options:
    """The options that name two pages of a server with QUEUE."""
    return scrapes(with_values(PAGE, **QUEUE), with_values(LATER, **QUEUE))


@pytest.fixture
def daemon() -> FakeDaemonView:
    return FakeDaemonView()


@pytest.fixture
def tokens(tmp_path: Path, daemon: FakeDaemonView) -> Tokens:
    """Write `tokens` and a token file for each role to tmp_path."""
    for role, text in store_roles(tmp_path / "tokens", principal="ann").items():
        (tmp_path / role).write_text(f"{text}\n")
    return Tokens(tmp_path / "tokens", daemon.now)


@pytest.fixture
def run(
    daemon: FakeDaemonView,
    tokens: Tokens,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Run]:
    """Run a command as an operator: (exit status, stdout, stderr)."""
    with served(daemon, tokens) as port:
        monkeypatch.setenv("FLETTNER_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("FLETTNER_TOKEN_FILE", str(tmp_path / "operator"))
        monkeypatch.delenv("FLETTNER_TOKEN", raising=False)
        yield runs(capsys)
