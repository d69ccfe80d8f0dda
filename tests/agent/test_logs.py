"""Logs as a collector and as a person at a terminal see them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from agent.logs import configure


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()  # pytest's own: `configure` would close them
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_a_collector_gets_json_without_secrets() -> None:
    stream = io.StringIO()
    configure("info", stream)

    structlog.get_logger("trimtab").info("launched", target="chat", argv=["vllm", "--api-key", "PLANTED"])
    logging.getLogger("aiohttp.access").warning("GET %s HF_TOKEN=PLANTED", "/metrics")
    structlog.get_logger("trimtab").debug("not said")

    ours, theirs = (json.loads(line) for line in stream.getvalue().splitlines())
    assert ours["event"] == "launched"
    assert (ours["level"], ours["logger"], ours["target"]) == ("info", "trimtab", "chat")
    assert ours["argv"] == ["vllm", "--api-key", "***"]
    assert ours["timestamp"].endswith("Z")
    assert theirs["event"] == "GET /metrics HF_TOKEN=***"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["json", "terminal"])
def test_an_exception_is_told_without_secrets(stream: io.StringIO) -> None:
    configure("error", stream)

    try:
        int("bad --hf-token PLANTED")
    except ValueError:
        structlog.get_logger("trimtab").exception("failed")

    assert "ValueError: invalid literal for int() with base 10: 'bad --hf-token ***" in stream.getvalue()
    assert "PLANTED" not in stream.getvalue()


def test_a_person_gets_lines() -> None:
    stream = Terminal()
    configure("info", stream)

    structlog.get_logger("trimtab").info("launched", target="chat")

    assert len(stream.getvalue().splitlines()) == 1
    assert "launched" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
