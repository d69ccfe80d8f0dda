"""The log of the daemon and its libraries, in place of pytest's own."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from flettner.agent.telemetry.logging import Level, configure


@contextmanager
def daemon_log(level: Level = "info") -> Iterator[io.StringIO]:
    """Yield what is logged; `configure` may be called again until the exit."""
    root = logging.getLogger()
    handlers, root_level, stream = root.handlers[:], root.level, io.StringIO()
    root.handlers.clear()  # pytest's own: `configure` would close them
    configure(level, stream)
    try:
        yield stream
    finally:
        root.handlers[:] = handlers
        root.setLevel(root_level)
        structlog.reset_defaults()
