"""Why a receiver cannot be reached, without its address or URL, which may be secret."""

import os
import socket
import ssl


def describe_failure(error: Exception) -> str:
    """Describe an error of the connection, or of the one that aiohttp wraps."""
    cause = getattr(error, "os_error", error)
    if isinstance(cause, socket.gaierror) or type(error).__name__ == "ClientConnectorDNSError":
        return "its name cannot be resolved"
    certificate = getattr(error, "certificate_error", error)
    if isinstance(certificate, ssl.SSLCertVerificationError):
        return f"its certificate: {certificate.verify_message}"
    if isinstance(cause, OSError) and cause.errno and not isinstance(cause, ssl.SSLError):
        return os.strerror(cause.errno)
    return type(error).__name__
