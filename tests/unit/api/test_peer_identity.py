"""Clients of the unix socket are authenticated by SO_PEERCRED."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, UnixConnector
from hypothesis import given
from hypothesis import strategies as st

from flettner.agent.api.app import build_app
from flettner.agent.api.peer_identity import PeerIdentities, is_mapped
from flettner.agent.api.server import serve
from flettner.agent.api.tokens import RANKS, Tokens
from flettner.agent.config.listen import Role
from flettner.agent.domain.errors import ConfigError
from flettner.primitives.address import Address, UnixSocket
from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.served_api import served

NOBODY = 65534
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
IDS = st.integers(1_000_000, 1_000_005)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")


def role_of(peers: PeerIdentities, uid: int, gids: set[int]) -> Role | None:
    holder = peers.holder_of(uid, gids)
    return holder.role if holder else None


def test_root_and_the_daemons_user_are_always_admins() -> None:
    peers = PeerIdentities({"0": "viewer", str(os.geteuid()): "viewer"}, {})

    assert role_of(peers, 0, set()) == role_of(peers, os.geteuid(), set()) == "admin"


def test_other_accounts_have_no_default_access() -> None:
    assert role_of(PeerIdentities({}, {}), 1_000_000, {0, 1_000_000}) is None


@given(
    users=st.dictionaries(IDS, st.sampled_from(ROLES)),
    groups=st.dictionaries(IDS, st.sampled_from(ROLES)),
    uid=IDS,
    gids=st.sets(IDS),
)
def test_highest_role_applies(
    users: dict[int, Role], groups: dict[int, Role], uid: int, gids: set[int]
) -> None:
    peers = PeerIdentities({str(k): v for k, v in users.items()}, {str(k): v for k, v in groups.items()})
    roles = [role for role in (users.get(uid), *map(groups.get, gids)) if role is not None]

    assert role_of(peers, uid, gids) == max(roles, key=lambda role: RANKS[role], default=None)


@pytest.mark.parametrize(
    ("users", "groups", "message"),
    [
        ({"no-such-user": "viewer"}, {}, r"\[api\] users: this host has no user no-such-user"),
        ({}, {"no-such-group": "viewer"}, r"\[api\] groups: this host has no group no-such-group"),
        ({"4294967295": "admin"}, {}, r"\[api\] users: 4294967295 is not a valid account number"),
    ],
)
def test_names_an_unknown_account(users: dict[str, Role], groups: dict[str, Role], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PeerIdentities(users, groups)


@pytest.mark.parametrize(
    ("id_map", "here"),
    [
        pytest.param("         0          0 4294967295\n", {0, 996, 1001, NOBODY}, id="the host's"),
        pytest.param("0 0 1\n996 996 1\n", {0, 996}, id="PrivateUsers=yes for a user 996"),
        pytest.param("0 1048576 65536\n", {0, 996, 1001, NOBODY}, id="a container with users of its own"),
        pytest.param("0 1048576 1001\n", {0, 996}, id="one with few of them"),
    ],
)
def test_recognises_user_ids_mapped_into_the_namespace(id_map: str, here: set[int]) -> None:
    assert {number for number in (0, 996, 1001, NOBODY) if is_mapped(number, id_map)} == here


@pytest.mark.parametrize("key", ["users", "groups"])
def test_daemon_with_unmapped_users_does_not_start(key: str, tmp_path: Path) -> None:
    config = tmp_path / "flettner.toml"
    config.write_text(f"""
        [agent]
        state_dir = "s"
        [api]
        listen = "unix:{tmp_path}/api.sock"
        {key} = {{ 1001 = "operator" }}
        [[targets]]
        name = "chat"
        [targets.engine]
        kind = "process"
        serving = "http://127.0.0.1:9"
    """)

    ran = subprocess.run(
        ["unshare", "-U", "-r", sys.executable, "-m", "flettner", "run", "-c", str(config)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 2, ran.stderr
    assert f"[api] {key}: 1001 is not mapped in the user namespace of this process" in ran.stderr
    assert "PrivateUsers=no" in ran.stderr


async def test_daemons_user_needs_no_token_and_is_named_in_the_journal(
    daemon: FakeDaemonView, tokens: Tokens, tmp_path: Path
) -> None:
    path = tmp_path / "api.sock"
    runner = await serve(build_app(daemon, tokens, peers=PeerIdentities({}, {})), UnixSocket(path))
    async with ClientSession(connector=UnixConnector(str(path))) as session:
        async with session.post("http://localhost/v1/targets/chat/pause") as response:
            assert response.status == 200
        assert daemon.targets()["chat"].state.note.startswith(f"paused by uid {os.geteuid()} (")
        wrong = {"Authorization": "Bearer fl_00000000_" + "A" * 43}
        async with session.get("http://localhost/v1/targets", headers=wrong) as response:
            assert response.status == 401  # a token takes precedence over the other identity
        async with session.post("http://any.name/v1/targets/chat/resume") as response:
            assert response.status == 421
        foreign = {"Origin": "https://evil.example"}
        async with session.post("http://localhost/v1/targets/chat/resume", headers=foreign) as response:
            assert response.status == 403
    assert daemon.targets()["chat"].state.paused
    await runner.cleanup()


async def test_tcp_clients_have_no_peer_identity(daemon: FakeDaemonView, tokens: Tokens) -> None:
    runner = await serve(build_app(daemon, tokens, peers=PeerIdentities({}, {})), Address("127.0.0.1", 0))
    port = runner.addresses[0][1]
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}/v1/targets") as response:
        assert response.status == 401
    await runner.cleanup()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that other users can enter; those of pytest are private."""
    path = Path("/tmp") / f"flettner-{os.getpid()}-peers"  # noqa: S108 - closed to writers
    path.mkdir(mode=0o755)
    yield path
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


@contextmanager
def as_nobody(groups: Sequence[int]) -> Iterator[None]:
    before = os.getgroups(), os.getegid()
    os.setgroups(groups)
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(before[1])
        os.setgroups(before[0])


@needs_root
@pytest.mark.parametrize(
    ("groups", "extra", "status"),
    [
        ({}, [], "401"),
        ({"1000001": "viewer"}, [1_000_001], "403"),
        ({"1000001": "operator"}, [1_000_001], "200"),
        ({"1000001": "operator"}, [1_000_002], "401"),
        ({str(NOBODY): "operator"}, [], "200"),
    ],
)
def test_group_membership_grants_another_user_its_role(
    daemon: FakeDaemonView,
    tokens: Tokens,
    open_folder: Path,
    groups: dict[str, Role],
    extra: list[int],
    status: str,
) -> None:
    path = open_folder / "api.sock"
    with served(daemon, tokens, f"unix:{path}", PeerIdentities({}, groups)):
        path.chmod(0o666)  # bypass the file mode to test the peer check
        with socket.socket(socket.AF_UNIX) as connection:
            with as_nobody(extra):
                connection.connect(str(path))
            connection.sendall(b"POST /v1/targets/chat/pause HTTP/1.1\r\nHost: localhost\r\n\r\n")
            message = connection.recv(65536)

    assert message.split()[1] == status.encode()
    assert daemon.targets()["chat"].state.paused == (status == "200")
