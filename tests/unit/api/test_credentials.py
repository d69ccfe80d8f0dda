"""TLS beyond loopback, and the credentials that SIGHUP reloads."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientConnectorError, ClientError, ClientSession
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs

from flettner.agent.api.app import build_app
from flettner.agent.api.credentials import ApiCredentials
from flettner.agent.api.server import serve
from flettner.agent.config.listen import Certificate, ListenOptions, Role
from flettner.agent.domain.errors import ConfigError
from flettner.primitives.address import Address, UnixSocket
from tests.support.fake_daemon_view import FakeDaemonView

DAY = timedelta(days=1)


def certify(
    folder: Path,
    name: str,
    *,
    now: datetime | None = None,
    also: Sequence[x509.GeneralName] = (x509.IPAddress(ip_address("127.0.0.1")),),
) -> Certificate:
    """Create a self-signed certificate for 127.0.0.1; `also` lists further alternative names."""
    key, now = ec.generate_private_key(ec.SECP256R1()), now or datetime.now(UTC)  # noqa: TID251 - OpenSSL's now
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begun = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    if also:
        begun = begun.add_extension(x509.SubjectAlternativeName(also), critical=False)
    made = begun.sign(key, hashes.SHA256())
    chain, secret = folder / f"{name}.pem", folder / f"{name}.key"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return Certificate(chain=chain, key=secret, client_ca=None)


def options_with(certificate: Certificate | None, tokens_file: Path | None = None) -> ListenOptions:
    return ListenOptions(
        listen=(UnixSocket(Path("/run/x.sock")), Address("127.0.0.1", 0), Address("::1", 0)),
        hosts=("tuner.example",),
        tokens_file=tokens_file,
        certificate=certificate,
        users={},
        groups={},
        certificates={},
    )


@asynccontextmanager
async def listening(entry: ApiCredentials) -> AsyncIterator[str]:
    daemon = FakeDaemonView()
    app = build_app(daemon, entry.tokens, entry.hosts, peers=entry.peers)
    runner = await serve(app, Address("127.0.0.1", 0), tls=entry.tls)
    yield f"https://127.0.0.1:{runner.addresses[0][1]}/healthz"
    await runner.cleanup()


def trusting(server: Certificate, own: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(server.chain))
    if own is not None:
        context.load_cert_chain(own.chain, own.key)
    return context


async def status_of(url: str, context: ssl.SSLContext) -> int:
    async with ClientSession() as session, session.get(url, ssl=context) as response:
        return response.status


async def test_a_connection_without_a_handshake_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flettner.agent.api.server.CONNECTIONS", 2)
    server = certify(tmp_path, "server")
    async with listening(ApiCredentials.of(options_with(server), FakeDaemonView().now)) as url:
        port = urlsplit(url).port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        refused, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(20):
            assert await refused.read() == b""
        writer.close()

        silent[0][1].close()
        async with asyncio.timeout(60):
            while True:
                with suppress(ClientError):
                    assert await status_of(url, trusting(server)) == 200
                    break
        silent[1][1].close()


async def test_a_silent_handshake_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flettner.agent.api.server.HANDSHAKE_S", 0.2)
    async with listening(
        ApiCredentials.of(options_with(certify(tmp_path, "server")), FakeDaemonView().now)
    ) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        writer.write(b"\x16\x03")
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


async def test_serves_tls_and_refuses_plain_http(tmp_path: Path) -> None:
    server = certify(tmp_path, "server")
    async with listening(ApiCredentials.of(options_with(server), FakeDaemonView().now)) as url:
        assert await status_of(url, trusting(server)) == 200
        async with ClientSession() as session:
            with pytest.raises(ClientError):
                await session.get(url.replace("https", "http"))


async def test_client_ca_requires_a_client_certificate(tmp_path: Path) -> None:
    server, trusted, unknown = (certify(tmp_path, name) for name in ("server", "trusted", "unknown"))
    mutual = replace(server, client_ca=trusted.chain)
    async with listening(ApiCredentials.of(options_with(mutual), FakeDaemonView().now)) as url:
        assert await status_of(url, trusting(server, trusted)) == 200
        for own in (None, unknown):
            with pytest.raises((ClientError, OSError)):
                await status_of(url, trusting(server, own))


@pytest.mark.parametrize(
    ("also", "statuses"),
    [
        ((x509.RFC822Name("ann@example.org"),), (200, 200)),
        ((x509.DNSName("other.example"), x509.UniformResourceIdentifier("spiffe://x/viewer")), (200, 403)),
        ((x509.DNSName("other.example"),), (401, 401)),
        ((), (200, 403)),
    ],
    ids=["mail", "uri", "unknown", "common name"],
)
async def test_client_certificate_authenticates_if_its_name_has_a_role(
    tmp_path: Path, also: Sequence[x509.GeneralName], statuses: tuple[int, int]
) -> None:
    server, trusted = certify(tmp_path, "server"), certify(tmp_path, "trusted", also=also)
    roles: dict[str, Role] = {
        "ann@example.org": "operator",
        "spiffe://x/viewer": "viewer",
        "trusted": "viewer",
    }
    entry = ApiCredentials.of(
        replace(options_with(replace(server, client_ca=trusted.chain)), certificates=roles),
        FakeDaemonView().now,
    )
    async with listening(entry) as url, ClientSession() as session:
        base, context = url.removesuffix("/healthz"), trusting(server, trusted)
        async with session.get(f"{base}/v1/targets", ssl=context) as read:
            pass
        async with session.post(f"{base}/v1/targets/chat/pause", ssl=context) as changed:
            body = await changed.text()
        wrong = {"Authorization": "Bearer fl_00000000_" + "A" * 43}
        async with session.get(f"{base}/v1/targets", ssl=context, headers=wrong) as refused:
            assert refused.status == 401  # a token takes precedence over the other identity

    assert (read.status, changed.status) == statuses
    assert ("paused by certificate ann@example.org" in body) == (statuses == (200, 200))


async def test_reload_applies_a_renewed_certificate(tmp_path: Path) -> None:
    server = certify(tmp_path, "server")
    old = trusting(server)
    entry = ApiCredentials.of(options_with(server), FakeDaemonView().now)
    async with listening(entry) as url:
        renewed = certify(tmp_path, "server")
        entry.reload()

        assert await status_of(url, trusting(renewed)) == 200
        with pytest.raises(ClientConnectorError):
            await status_of(url, old)


def test_failed_reload_is_logged_and_keeps_the_previous_credentials(tmp_path: Path) -> None:
    server = certify(tmp_path, "server")
    tokens = tmp_path / "tokens"
    tokens.write_text("")
    tokens.chmod(0o600)
    entry = ApiCredentials.of(options_with(server, tokens), FakeDaemonView().now)
    tokens.write_text('{"sha256": "s3cret"}\n')
    server.chain.write_text("s3cret")

    with capture_logs() as logged:
        entry.reload()

    assert [(line["event"], line["what"]) for line in logged] == [
        ("api.not_reloaded", "tokens"),
        ("api.not_reloaded", "certificate"),
    ]
    assert "s3cret" not in str(logged)


@pytest.mark.parametrize("broken", ["chain", "key", "client_ca"])
def test_names_an_unusable_certificate(tmp_path: Path, broken: str) -> None:
    server = replace(certify(tmp_path, "server"), client_ca=certify(tmp_path, "ca").chain)
    path: Path = getattr(server, broken)
    path.write_text("nothing of that kind")

    with pytest.raises(ConfigError, match=r"\[api\] tls_.* cannot be used") as caught:
        ApiCredentials.of(options_with(server), FakeDaemonView().now)
    assert str(path) in str(caught.value)


def test_accepts_configured_host_names_and_listen_addresses() -> None:
    assert ApiCredentials.of(options_with(None), FakeDaemonView().now).hosts == {
        "tuner.example",
        "127.0.0.1",
        "[::1]",
    }


def test_socket_is_limited_to_the_daemons_group_until_accounts_have_roles() -> None:
    alone = ApiCredentials.of(options_with(None), FakeDaemonView().now)
    shared = ApiCredentials.of(replace(options_with(None), users={"0": "admin"}), FakeDaemonView().now)

    assert (alone.socket_mode, shared.socket_mode) == (0o660, 0o666)
