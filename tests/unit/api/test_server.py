"""Listen addresses of the API, and the errors if listening fails."""

import asyncio
import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import ClientSession, UnixConnector, web

from flettner.agent.api import middleware
from flettner.agent.api import server as listening
from flettner.agent.api.app import build_app
from flettner.agent.api.server import serve
from flettner.agent.api.tokens import Tokens
from flettner.agent.config.listen import Role
from flettner.agent.domain.errors import ConfigError
from flettner.agent.runtime.host_check import find_write_error
from flettner.primitives.address import Address, UnixSocket
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client


async def test_listens_on_a_unix_socket_for_its_group(
    daemon: FakeDaemonView, tokens: Tokens, tmp_path: Path
) -> None:
    path = tmp_path / "api.sock"
    runner = await serve(build_app(daemon, tokens), UnixSocket(path))

    async with ClientSession(connector=UnixConnector(str(path))) as session:
        async with session.get("http://localhost/healthz") as health:
            assert health.status == 200
        async with session.get("http://localhost/v1/targets") as targets:
            assert targets.status == 401  # no account of this host has a role
        async with session.get("http://any.name/healthz") as rebound:  # for example through `ssh -L`
            assert rebound.status == 421
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    await runner.cleanup()
    assert not path.exists()


async def test_replaces_a_stale_socket(daemon: FakeDaemonView, tokens: Tokens, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(path))

    runner = await serve(build_app(daemon, tokens), UnixSocket(path))
    with pytest.raises(ConfigError, match="another process listens there"):
        await serve(build_app(daemon, tokens), UnixSocket(path))
    assert path.is_socket()

    await runner.cleanup()


async def test_creates_the_directory_of_its_socket(
    daemon: FakeDaemonView, tokens: Tokens, tmp_path: Path
) -> None:
    path = tmp_path / "flettner" / "api.sock"

    runner = await serve(build_app(daemon, tokens), UnixSocket(path))

    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o022 == 0
    await runner.cleanup()


def test_reports_an_unwritable_socket_directory_before_start(tmp_path: Path) -> None:
    assert find_write_error("[api] listen", Path("/proc/flettner")).startswith(
        "[api] listen: /proc is not writable"
    )
    assert find_write_error("[api] listen", tmp_path / "flettner") == ""


async def test_listens_on_several_addresses(daemon: FakeDaemonView, tokens: Tokens, tmp_path: Path) -> None:
    runner = await serve(
        build_app(daemon, tokens),
        UnixSocket(tmp_path / "api.sock"),
        Address("127.0.0.1", 0),
        Address("::1", 0),
    )

    assert len(runner.addresses) == 3
    await runner.cleanup()


async def test_closes_all_listeners_if_one_address_is_in_use(
    daemon: FakeDaemonView, tokens: Tokens, client: Client, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="already in use"):
        await serve(
            build_app(daemon, tokens),
            UnixSocket(tmp_path / "api.sock"),
            Address("127.0.0.1", client.port or 0),
        )

    assert not (tmp_path / "api.sock").exists()


async def test_names_a_port_in_use(daemon: FakeDaemonView, tokens: Tokens, client: Client) -> None:
    with pytest.raises(ConfigError, match="already in use"):
        await serve(build_app(daemon, tokens), Address("127.0.0.1", client.port or 0))


async def test_socket_does_not_overwrite_a_file(
    daemon: FakeDaemonView, tokens: Tokens, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("mine")

    with pytest.raises(ConfigError, match="a file, not a socket"):
        await serve(build_app(daemon, tokens), UnixSocket(tmp_path / "notes"))

    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.parametrize("victim", ["notes", "other.sock"])
async def test_a_link_in_place_of_the_socket_reaches_nothing_behind_it(
    daemon: FakeDaemonView, tokens: Tokens, tmp_path: Path, victim: str
) -> None:
    (tmp_path / "notes").write_text("mine")
    with closing(socket.socket(socket.AF_UNIX)) as other:
        other.bind(str(tmp_path / "other.sock"))
        other.listen()
        (tmp_path / "api.sock").symlink_to(tmp_path / victim)

        with pytest.raises(ConfigError):
            await serve(build_app(daemon, tokens), UnixSocket(tmp_path / "api.sock"))

        assert (tmp_path / "notes").read_text() == "mine"
        assert (tmp_path / "other.sock").is_socket()
        assert (tmp_path / "api.sock").is_symlink()


async def test_internal_error_answers_a_problem_without_details(
    daemon: FakeDaemonView, client: Client
) -> None:
    del daemon._targets

    async with client.get("/v1/targets") as response:
        text = await response.text()

    assert response.status == 500
    assert "_targets" not in text
    assert response.content_type == "application/problem+json"


async def test_reports_that_it_is_not_ready(daemon: FakeDaemonView, client: Client) -> None:
    daemon.is_ready = False

    async with client.get("/readyz") as response:
        assert response.status == 503
    async with client.get("/healthz") as response:
        assert response.status == 200


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "192.0.2.1:1", "[::]:0", "example.org:1"])
async def test_requires_tls_beyond_loopback(daemon: FakeDaemonView, tokens: Tokens, listen: str) -> None:
    with pytest.raises(ConfigError, match="TLS"):
        await serve(build_app(daemon, tokens), Address.parse(listen))


async def test_closes_connections_beyond_the_limit(
    daemon: FakeDaemonView, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "CONNECTIONS", 2)
    runner = await serve(build_app(daemon, tokens), Address("127.0.0.1", 0))
    port = runner.addresses[0][1]
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    for reader, writer in connections:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(20):
        assert await reader.read() == b""

    for _, each in (*connections, (reader, writer)):
        each.close()
    await runner.cleanup()


async def test_who_holds_all_connections_of_a_port_leaves_the_unix_socket_to_others(
    daemon: FakeDaemonView, tokens: Tokens, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(listening, "CONNECTIONS", 1)
    path, sent = tmp_path / "api.sock", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    runner = await serve(build_app(daemon, tokens), UnixSocket(path), Address("127.0.0.1", 0))
    port = next(address[1] for address in runner.addresses if isinstance(address, tuple))
    held = await asyncio.open_connection("127.0.0.1", port)
    held[1].write(sent)
    assert (await held[0].readline()).startswith(b"HTTP/1.1 200")

    refused = await asyncio.open_connection("127.0.0.1", port)
    local = await asyncio.open_unix_connection(path)
    local[1].write(sent)
    async with asyncio.timeout(20):
        assert await refused[0].read() == b""
        assert (await local[0].readline()).startswith(b"HTTP/1.1 200")

    for _, writer in (held, refused, local):
        writer.close()
    await runner.cleanup()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: loc", b"\r\n\r\n"], ids=repr)
async def test_disconnects_a_client_that_never_finishes_its_request(
    daemon: FakeDaemonView, tokens: Tokens, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(listening, "IDLE_S", 0.2)
    runner = await serve(build_app(daemon, tokens), Address("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection("127.0.0.1", runner.addresses[0][1])
    writer.write(sent)

    async with asyncio.timeout(20):
        await reader.read()

    writer.close()
    await runner.cleanup()


async def test_client_disconnect_before_the_response_is_not_logged(
    daemon: FakeDaemonView,
    tokens: Tokens,
    bearers: dict[Role, dict[str, str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    left = asyncio.Event()

    async def late(_: web.Request, __: web.StreamResponse) -> None:
        await left.wait()
        await asyncio.sleep(0.1)  # let the transport notice it

    app = build_app(daemon, tokens)
    app.on_response_prepare.append(late)
    runner = await serve(app, Address("127.0.0.1", 0))
    bearer = bearers["viewer"]["Authorization"]
    _, writer = await asyncio.open_connection(*runner.addresses[0][:2])
    writer.write(f"GET /v1/targets HTTP/1.1\r\nHost: localhost\r\nAuthorization: {bearer}\r\n\r\n".encode())
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.transport.abort()
    left.set()
    await asyncio.sleep(0.3)
    await runner.cleanup()

    assert caplog.text == ""


async def test_disconnects_a_client_that_never_reads_its_response(
    daemon: FakeDaemonView,
    tokens: Tokens,
    bearers: dict[Role, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(middleware, "SEND_TIMEOUT_S", 0.2)
    daemon.record("x" * 20_000_000)
    runner = await serve(build_app(daemon, tokens), Address("127.0.0.1", 0))
    bearer = bearers["viewer"]["Authorization"]
    with socket.create_connection(runner.addresses[0][:2]) as connection:
        connection.setblocking(False)
        head = f"GET /v1/audit?limit=1000 HTTP/1.1\r\nHost: localhost\r\nAuthorization: {bearer}\r\n\r\n"
        connection.sendall(head.encode())
        server = runner.server
        assert server is not None
        async with asyncio.timeout(20):
            while not server.connections:
                await asyncio.sleep(0.01)
            while server.connections:
                await asyncio.sleep(0.01)
    await runner.cleanup()
