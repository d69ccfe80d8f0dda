"""`check` says why nobody could use the API: its addresses are taken, or nobody can sign in."""

import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flettner.agent.api.tokens import mint_token, store_tokens
from flettner.agent.config.loader import load_config
from flettner.agent.runtime.api_check import find_api_problems
from flettner.agent.runtime.lock import hold_lock
from tests.support.ports import free_port

NOW = datetime(2025, 11, 27, 12, tzinfo=UTC)
CONFIG = """
[agent]
state_dir = "state"
[api]
listen = {listen}
{api}
[[targets]]
name = "chat"
[targets.slo]
ttft = {{ under = "500ms", share = 0.95 }}
[targets.engine]
kind = "process"
command = ["vllm", "serve", "m"]
"""


def problems(folder: Path, *listen: str, api: str = "") -> Sequence[str]:
    (folder / "flettner.toml").write_text(CONFIG.format(listen=list(listen), api=api))
    return find_api_problems(load_config(folder / "flettner.toml"), lambda: NOW)


def write_token(folder: Path, expires: datetime | None) -> None:
    _, token = mint_token(role="operator", principal="ann", made_at=NOW, expires=expires)
    store_tokens(folder / "tokens", [token])


def test_an_address_that_another_process_has_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    local = ("127.0.0.1", 0)
    with (
        socket.create_server(local) as tcp,
        socket.create_server(local) as other,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        unix.bind(os.fspath(path))
        unix.listen()
        port, health = (bound.getsockname()[1] for bound in (tcp, other))

        taken = problems(tmp_path, f"127.0.0.1:{port}", f"unix:{path}", api=f'health = "127.0.0.1:{health}"')

    assert [line.partition(" = ")[0] for line in taken] == ["[api] listen", "[api] listen", "[api] health"]
    assert "Address already in use: stop that process" in taken[0]


def test_a_running_daemon_of_this_config_has_its_own_addresses(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, hold_lock(tmp_path / "state"):
        listen = (f"127.0.0.1:{tcp.getsockname()[1]}", f"unix:{tmp_path}/api.sock")
        assert problems(tmp_path, *listen) == []


def test_nobody_signs_in_at_a_port_without_a_valid_token(tmp_path: Path) -> None:
    listen, api = f"127.0.0.1:{free_port()}", 'tokens_file = "tokens"'
    (without,) = problems(tmp_path, listen)
    (tmp_path / "tokens").touch(mode=0o600)
    (empty,) = problems(tmp_path, listen, api=api)
    write_token(tmp_path, NOW - timedelta(seconds=1))
    (expired,) = problems(tmp_path, listen, api=api)
    write_token(tmp_path, None)

    assert {without, empty, expired} == {without}
    assert "nobody can sign in" in without
    assert problems(tmp_path, listen, api=api) == []
    assert problems(tmp_path, listen, f"unix:{tmp_path}/api.sock") == []
