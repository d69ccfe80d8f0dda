"""Tokens: only hashes are stored, and untrusted files are refused."""

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flettner.agent.api.tokens import MAX_FILE, SHAPE, Token, Tokens, load_tokens, mint_token, store_tokens
from flettner.agent.domain.errors import ConfigError
from tests.support.fake_daemon_view import NOON, FakeDaemonView
from tests.support.sampling import examples


def test_file_stores_no_token_and_is_owner_only(tmp_path: Path) -> None:
    text, token = mint_token(role="operator", principal="ann", made_at=NOON, expires=None)
    path = tmp_path / "tokens"

    store_tokens(path, [token])

    assert text.startswith("fl_")
    assert len(text.rsplit(f"fl_{token.id}_", maxsplit=1)[1]) == 43
    assert text.removeprefix(f"fl_{token.id}_") not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert load_tokens(path) == {token.id: token}


def test_token_matches_only_in_full(tmp_path: Path) -> None:
    text, token = mint_token(role="viewer", principal="ann", made_at=NOON, expires=None)
    store_tokens(tmp_path / "tokens", [token])
    tokens = Tokens(tmp_path / "tokens", FakeDaemonView().now)

    assert tokens.holder(text) == token
    assert tokens.holder(text[:-1] + ("A" if text[-1] != "A" else "B")) is None
    assert tokens.holder(text + "A") is None
    assert tokens.holder(text.replace(token.id, "00000000")) is None
    assert tokens.holder("") is None


def test_refuses_an_expired_token(tmp_path: Path) -> None:
    daemon = FakeDaemonView()
    text, token = mint_token(role="viewer", principal="ann", made_at=NOON, expires=NOON + timedelta(days=1))
    store_tokens(tmp_path / "tokens", [token])
    tokens = Tokens(tmp_path / "tokens", daemon.now)

    assert tokens.holder(text) == token
    daemon.at = NOON + timedelta(days=1)
    assert tokens.holder(text) is None


def test_invalid_file_on_reload_keeps_the_previous_tokens(tmp_path: Path) -> None:
    text, token = mint_token(role="viewer", principal="ann", made_at=NOON, expires=None)
    path = tmp_path / "tokens"
    store_tokens(path, [token])
    tokens = Tokens(path, FakeDaemonView().now)
    path.write_text("not json\n")

    with pytest.raises(ConfigError, match="line 1"):
        tokens.reload()

    assert tokens.holder(text) == token


LINE = '{"id": "00000000", "sha256": "%s", "role": "viewer", "principal": "ann"}' % ("0" * 64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]\n", "line 1"),
        (LINE + "\n" + LINE + "\n", "line 2: duplicate token id 00000000"),
        (LINE.replace("viewer", "root") + "\n", "line 1: role"),
        (LINE.replace("}", ', "expires": "2027-01-01T00:00:00"}'), "line 1: expires: .* timezone"),
        ("\xff", "line 1"),
    ],
)
def test_names_an_invalid_line_without_echoing_it(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(0o600)

    with pytest.raises(ConfigError, match=message) as caught:
        load_tokens(path)

    assert "0" * 64 not in str(caught.value)


def test_refuses_a_tokens_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("\n" * (MAX_FILE + 1))
    path.chmod(0o600)

    with pytest.raises(ConfigError, match="larger than"):
        load_tokens(path)


TOKENS = st.builds(
    lambda role, principal, targets, expires: mint_token(
        role=role, principal=principal, made_at=NOON, expires=expires, targets=targets
    )[1],
    st.sampled_from(["viewer", "operator", "admin"]),
    st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=25),
    st.none() | st.lists(st.text("abc-019", min_size=1, max_size=63), min_size=1, max_size=5).map(tuple),
    st.none() | st.datetimes(min_value=datetime(2000, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)


@settings(
    max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(tokens=st.lists(TOKENS, max_size=5, unique_by=lambda token: token.id))
def test_stored_tokens_round_trip(tmp_path: Path, tokens: list[Token]) -> None:
    store_tokens(tmp_path / "tokens", tokens)

    assert list(load_tokens(tmp_path / "tokens").values()) == tokens


LINES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*Token.model_fields, "x"]), inner, max_size=7)
    ),
    max_leaves=8,
).map(json.dumps)


@settings(
    max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    content=st.binary(max_size=64) | st.lists(LINES, max_size=3).map(lambda each: "\n".join(each).encode())
)
def test_any_file_is_read_or_refused_with_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    path.chmod(0o600)

    try:
        load_tokens(path)
    except ConfigError as error:
        assert str(path) in str(error)  # noqa: PT017


@given(st.text(max_size=80) | st.from_regex(SHAPE, fullmatch=True))
def test_only_the_token_itself_authenticates(text: str) -> None:
    assert Tokens(None, FakeDaemonView().now).holder(text) is None


def test_refuses_a_file_writable_by_other_users(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("")
    path.chmod(0o620)

    with pytest.raises(ConfigError, match="chmod 600"):
        load_tokens(path)


def test_missing_file_is_reported_with_the_command_to_create_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="flettner token new --tokens-file"):
        load_tokens(tmp_path / "tokens")
