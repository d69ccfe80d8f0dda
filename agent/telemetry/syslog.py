"""One line for the syslog of this host, over its socket (RFC 3164)."""

import socket

ADDRESS = "/dev/log"
NOTICE = 3 * 8 + 5  # facility daemon, severity notice


def send_syslog(text: str, address: str = ADDRESS) -> None:
    """Raises OSError, also instead of waiting for a full socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.setblocking(False)
        out.sendto(f"<{NOTICE}>flettner: {text}".encode(), address)
