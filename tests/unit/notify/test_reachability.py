"""Why a receiver cannot be reached, in words."""

import smtplib
import socket
import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from flettner.agent.notify.reachability import describe_failure

KEY = ConnectionKey("hooks.example.org", 443, True, True, None, None, None)
REFUSED = ConnectionRefusedError(111, "Connect call failed ('192.0.2.1', 443)")
UNTRUSTED = ssl.SSLCertVerificationError(1, "self-signed certificate")
UNTRUSTED.verify_message = "self-signed certificate"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (aiohttp.ClientConnectorDNSError(KEY, OSError(None, "no address")), "its name cannot be resolved"),
        (socket.gaierror(-2, "Name or service not known"), "its name cannot be resolved"),
        (aiohttp.ClientConnectorError(KEY, REFUSED), "Connection refused"),
        (REFUSED, "Connection refused"),
        (aiohttp.ClientConnectorCertificateError(KEY, UNTRUSTED), "its certificate: self-signed certificate"),
        (aiohttp.ServerDisconnectedError(), "ServerDisconnectedError"),
        (smtplib.SMTPServerDisconnected("bye"), "SMTPServerDisconnected"),
    ],
)
def test_describes_the_failure_without_the_address(error: Exception, why: str) -> None:
    assert describe_failure(error) == why
