"""The API's credentials: tokens, accounts of this host, certificates. Loaded at start and on SIGHUP."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from flettner.agent.api.peer_identity import PeerIdentities
from flettner.agent.api.server import SOCKET_MODE
from flettner.agent.api.tokens import Tokens
from flettner.agent.config.listen import Certificate, ListenOptions
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.ports import Now
from flettner.primitives.address import Address

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ApiCredentials:
    options: ListenOptions
    tokens: Tokens
    peers: PeerIdentities
    tls: ssl.SSLContext | None = field(default=None)

    @classmethod
    def of(cls, options: ListenOptions, now: Now) -> "ApiCredentials":
        """Raises ConfigError, with the config key, for a file that cannot be read."""
        tls = None
        if options.certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            _certify(tls, options.certificate)
        try:
            tokens = Tokens(options.tokens_file, now)
        except ConfigError as error:
            raise ConfigError(f"[api] tokens_file: {error}") from error
        return cls(options, tokens, PeerIdentities(options.users, options.groups, options.certificates), tls)

    @property
    def hosts(self) -> set[str]:
        """Accepted names in the Host header: the configured ones and the listen addresses."""
        tcp = (listener.url_host for listener in self.options.listen if isinstance(listener, Address))
        return {*self.options.hosts, *tcp}

    @property
    def socket_mode(self) -> int:
        """Any account may connect if accounts have roles, as the kernel identifies the peer. Their groups
        need not be the daemon's, whose members can access more than this socket."""
        return 0o666 if self.options.users or self.options.groups else SOCKET_MODE

    def reload(self) -> None:
        """Reload tokens and certificate for new requests and connections.

        If one cannot be read, the error is logged and the previous one stays in force.
        """
        self._reload("tokens", self.tokens.reload)
        if self.tls is not None and self.options.certificate is not None:
            tls, certificate = self.tls, self.options.certificate
            self._reload("certificate", lambda: _certify(tls, certificate))

    def _reload(self, what: str, read: Callable[[], None]) -> None:
        try:
            read()
        except ConfigError as error:
            log.error("api.not_reloaded", what=what, why=str(error))  # noqa: TRY400 - the message is complete
        else:
            log.info("api.reloaded", what=what)


def _certify(tls: ssl.SSLContext, certificate: Certificate) -> None:
    try:
        tls.load_cert_chain(certificate.chain, certificate.key)
    except (OSError, ssl.SSLError) as error:
        where = f"{certificate.chain}, {certificate.key}"
        raise ConfigError(f"[api] tls_cert, tls_key: {where} cannot be used: {error}") from error
    if certificate.client_ca is None:
        return
    try:
        tls.load_verify_locations(certificate.client_ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"[api] tls_client_ca: {certificate.client_ca} cannot be used: {error}") from error
    tls.verify_mode = ssl.CERT_REQUIRED
