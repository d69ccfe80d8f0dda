"""Why nobody could use the API of a config on this host: its addresses are taken, or nobody can sign in."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from flettner.agent.api.tokens import load_tokens
from flettner.agent.config.loader import Config
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.ports import Now
from flettner.primitives.address import Address
from flettner.primitives.sockets import is_listening


def find_api_problems(config: Config, now: Now) -> list[str]:
    """One line each with its key; a running daemon of this config holds its own addresses."""
    taken = [] if is_daemon_running(config.state_dir) else list(_taken(config))
    return [*taken, *_nobody_signs_in(config, now)]


def is_daemon_running(state_dir: Path) -> bool:
    """Whether a daemon holds the lock of the state directory; looks without waiting, and makes no file."""
    with suppress(OSError):
        lock = os.open(state_dir / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return False


def _taken(config: Config) -> Iterator[str]:
    health = [("health", config.api.health)] if config.api.health else []
    for key, listener in [*(("listen", listener) for listener in config.api.listen), *health]:
        if isinstance(listener, Address):
            why = _why_unbound(listener)
        else:
            why = "another process listens there" if is_listening(listener.path) else ""
        if why:
            yield f"[api] {key} = '{listener}': {why}: stop that process, or choose another address"


def _why_unbound(address: Address) -> str:
    """Why a process cannot listen there; empty if it can."""
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        for family, kind, _, _, place in infos:
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
    except OSError as error:
        return f"cannot listen there: {error.strerror or error}"
    return ""


def _nobody_signs_in(config: Config, now: Now) -> Iterator[str]:
    """At a unix socket the user of the daemon needs no token."""
    api = config.api
    if any(not isinstance(listener, Address) for listener in api.listen):
        return
    if config.authenticators or api.certificates:
        return
    tokens = []
    if api.tokens_file is not None:
        with suppress(ConfigError):  # told with its own reason
            tokens = list(load_tokens(api.tokens_file).values())
    if not any(token.expires is None or token.expires > now() for token in tokens):
        yield (
            "[api] listen: nobody can sign in there: give tokens_file, with a token that has not expired "
            "(`flettner token new`), or listen at a unix socket too"
        )
