"""Logging to stderr: text on a terminal, fields for journald, JSON otherwise; secrets are masked in all.

The libraries' logs (aiohttp, docker, asyncio) take the same path.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO, get_args

import structlog

from flettner.agent.telemetry import journald as journald_log
from flettner.redaction import masked

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)


def configure(
    level: Level = "info", stream: TextIO | None = None, journald: str = journald_log.SOCKET
) -> None:
    """Send records of `level` and above to `stream` (default stderr). May be called again.

    If the stream is connected to journald, records go to journald's socket instead.
    """
    stream = stream or sys.stderr
    terminal = stream.isatty()
    before: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if terminal else "iso", utc=not terminal),
    ]
    structlog.configure(
        processors=[*before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # a second call must reach existing loggers
    )
    in_journal = journald_log.is_journald(stream)
    handler = journald_log.JournaldHandler(stream, journald) if in_journal else logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*before, structlog.stdlib.PositionalArgumentsFormatter()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _mask_secrets,
                *([_escape, _console_renderer()] if terminal else [structlog.processors.JSONRenderer()]),
            ],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _console_renderer() -> structlog.typing.Processor:
    """Render exceptions as the masked text, not again from their frames."""
    return structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)


def _escape(_: Any, __: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ANN401
    """Escape what could control a terminal or reorder its text; tracebacks keep their lines."""
    return {
        name: "".join(map(_escaped, value)) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _escaped(char: str) -> str:
    plain = char.isprintable() or char == "\n"
    return char if plain else char.encode("unicode_escape").decode("ascii")


def _mask_secrets(_: Any, __: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ANN401
    clean: dict[str, Any] = masked(fields)
    return clean
