"""Creating, listing and revoking tokens, and loading the file in the daemon."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flettner.agent.api.tokens import Tokens, load_tokens
from flettner.tools.cli.dispatch import main
from tests.unit.cli.conftest import Run, runs

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
FAR_AHEAD = datetime(2999, 1, 1, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


@pytest.fixture
def run(path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    return runs(capsys, "token", options=("--tokens-file", str(path)))


def test_creates_lists_and_revokes_a_token(run: Run, path: Path) -> None:
    status, out, err = run("new", "--role", "operator", "--name", "bob", "--expires", "90d")
    text = out.strip()
    tokens = Tokens(path, lambda: LONG_AGO)
    holder = tokens.holder(text)

    assert status == 0
    assert holder is not None
    assert (holder.role, holder.principal) == ("operator", "bob")
    assert Tokens(path, lambda: FAR_AHEAD).holder(text) is None
    assert "not shown again" in err
    assert text not in err
    assert text.split("_", 2)[2] not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600

    assert f"{holder.id}  operator  bob" in run("list")[1]
    assert run("revoke", holder.id)[0] == 0
    tokens.reload()
    assert tokens.holder(text) is None
    assert run("list")[1] == "no tokens\n"


def test_revoking_keeps_the_other_tokens(run: Run, path: Path) -> None:
    first, second = (run("new", "--role", "viewer", "--name", name)[1].strip() for name in ("ann", "bob"))

    assert run("revoke", first)[0] == 0  # the full token identifies it as well
    assert [token.principal for token in load_tokens(path).values()] == ["bob"]
    assert Tokens(path, lambda: FAR_AHEAD).holder(second) is not None


def test_json_never_holds_a_hash(run: Run) -> None:
    made = json.loads(run("new", "--role", "admin", "--name", "ann", "--json")[1])
    listed = run("list", "--json")[1]

    assert made["token"].startswith(f"fl_{made['id']}_")
    assert json.loads(listed)["tokens"][0]["principal"] == "ann"
    assert "sha256" not in listed
    assert json.loads(run("revoke", made["id"], "--json")[1]) == {"revoked": made["id"]}


def test_refuses_to_revoke_an_unknown_token(run: Run) -> None:
    run("new", "--role", "viewer", "--name", "ann")

    assert run("revoke", "00000000")[0] == 1


def test_names_a_missing_file_or_directory(run: Run, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run("list")
    assert status == 2
    assert str(path) in err

    where = path / "no" / "tokens"
    assert main(["token", "new", "--role", "viewer", "--name", "a", "--tokens-file", str(where)]) == 2
    assert str(where) in capsys.readouterr().err


@pytest.mark.parametrize("lifetime", ["90", "0d", "-1d", "9999w", "1y", ""])
def test_invalid_lifetime_is_a_usage_error(run: Run, path: Path, lifetime: str) -> None:
    assert run("new", "--role", "admin", "--name", "a", f"--expires={lifetime}")[0] == 2
    assert not path.exists()


def test_concurrent_commands_lose_no_token(path: Path) -> None:
    made = ["token", "new", "--role", "viewer", "--name", "ann", "--tokens-file", str(path)]
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(main, [made] * 16)) == {0}

    assert len(load_tokens(path)) == 16


def test_limits_a_token_to_some_targets(run: Run, path: Path) -> None:
    _, _, captured = run("new", "--role", "viewer", "--name", "ann", "--target", "chat", "--target", "batch")
    run("new", "--role", "viewer", "--name", "bob")

    assert "viewer for ann on chat batch, until it is revoked" in captured
    assert [token.targets for token in load_tokens(path).values()] == [("chat", "batch"), None]
    assert "ann   chat batch" in run("list")[1]
    assert "bob   every target" in run("list")[1]
    assert run("new", "--role", "viewer", "--name", "ann", "--target", "Chat!")[0] == 2


@pytest.mark.parametrize("name", ["", "  ", "a\x1b[2J", "x" * 101])
def test_invalid_name_is_a_usage_error(run: Run, path: Path, name: str) -> None:
    assert run("new", "--role", "admin", "--name", name)[0] == 2
    assert not path.exists()
