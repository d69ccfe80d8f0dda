"""Fixtures of the tests of commands."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flettner.agent.api.tokens import Tokens, mint_token, store_tokens
from flettner.agent.config.listen import Role
from flettner.tools.cli.dispatch import main
from tests.support.fake_daemon_view import NOON, FakeDaemonView
from tests.support.served_api import served
from tests.unit.cli.advising import Advise

Run = Callable[..., tuple[int, str, str]]


def runs(command: str, capsys: pytest.CaptureFixture[str]) -> Advise:
    """Run the command: (exit status, stdout, stderr)."""

    def run(*argv: str) -> tuple[int, str, str]:
        try:
            status = main((command, *argv))
        except SystemExit as end:  # argparse
            status = int(end.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def advise(capsys: pytest.CaptureFixture[str]) -> Advise:
    return runs("advise", capsys)


@pytest.fixture
def lint(capsys: pytest.CaptureFixture[str]) -> Advise:
    return runs("lint", capsys)


@pytest.fixture
def scrapes(tmp_path: Path) -> Callable[[bytes, bytes], tuple[str, ...]]:
    """Save two metrics pages and return the options that name them."""

    def save(first: bytes, second: bytes) -> tuple[str, ...]:
        (tmp_path / "a.prom").write_bytes(first)
        (tmp_path / "b.prom").write_bytes(second)
        return "--scrape", str(tmp_path / "a.prom"), "--scrape", str(tmp_path / "b.prom")

    return save


@pytest.fixture
def daemon() -> FakeDaemonView:
    return FakeDaemonView()


@pytest.fixture
def tokens(tmp_path: Path, daemon: FakeDaemonView) -> Tokens:
    """Write `tokens` and a token file for each of two roles to tmp_path."""
    kept = []
    roles: tuple[Role, ...] = ("viewer", "operator")
    for role in roles:
        text, token = mint_token(role=role, principal="ann", made_at=NOON, expires=None)
        (tmp_path / role).write_text(f"{text}\n")
        kept.append(token)
    store_tokens(tmp_path / "tokens", kept)
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

        def run(*argv: str) -> tuple[int, str, str]:
            try:
                status = main(argv)
            except SystemExit as end:  # argparse
                status = int(end.code or 0)
            captured = capsys.readouterr()
            return status, captured.out, captured.err

        yield run
