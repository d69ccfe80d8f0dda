"""Logs for a collector, for journald and for a terminal."""

import io
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest
import structlog

from flettner.agent.telemetry.logging import configure
from tests.support.daemon_log import daemon_log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    with daemon_log():
        yield


def test_a_collector_gets_json_without_secrets() -> None:
    stream = io.StringIO()
    configure("info", stream)

    structlog.get_logger("flettner").info("launched", target="chat", argv=["vllm", "--api-key", "PLANTED"])
    logging.getLogger("aiohttp.access").warning("GET %s HF_TOKEN=PLANTED", "/metrics")
    structlog.get_logger("flettner").debug("not said")

    ours, theirs = (json.loads(line) for line in stream.getvalue().splitlines())
    assert ours["event"] == "launched"
    assert (ours["level"], ours["logger"], ours["target"]) == ("info", "flettner", "chat")
    assert ours["argv"] == ["vllm", "--api-key", "***"]
    assert ours["timestamp"].endswith("Z")
    assert theirs["event"] == "GET /metrics HF_TOKEN=***"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["json", "terminal"])
def test_no_text_controls_a_terminal_or_reorders_its_text(stream: io.StringIO) -> None:
    configure("info", stream)

    structlog.get_logger("flettner").info("denied", why="a\x1b[2J\u202eb", log="line 1\nline 2")

    assert not [hidden for hidden in ("\x1b[2J", "\u202e") if hidden in stream.getvalue()]
    assert "\\u202e" in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["json", "terminal"])
def test_an_exception_is_logged_without_secrets(stream: io.StringIO) -> None:
    configure("error", stream)

    try:
        int("bad --hf-token PLANTED")
    except ValueError:
        structlog.get_logger("flettner").exception("failed")

    assert "ValueError: invalid literal for int() with base 10: 'bad --hf-token ***" in stream.getvalue()
    assert "PLANTED" not in stream.getvalue()


@contextmanager
def journald(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, TextIO]]:
    """The socket of journald, and a stream that systemd connects to it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours, (home / "stderr").open("w+") as stderr:
        ours.bind(str(home / "journal"))
        ours.settimeout(10)
        status = os.fstat(stderr.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        configure("info", stderr, journald=str(home / "journal"))
        yield ours, stderr
        for handler in logging.getLogger().handlers:
            handler.close()


def test_journald_gets_each_key_as_a_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with journald(tmp_path, monkeypatch) as (socket_, stderr):
        with structlog.contextvars.bound_contextvars(target="chat", rollout="chat-o3"):
            structlog.get_logger("flettner").warning("effect failed", why="two\nlines --api-key PLANTED")
        datagram = socket_.recv(65536)
        line = stderr.seek(0) or stderr.read()

    assert b"\nPRIORITY=4\n" in datagram
    assert b"\nFLETTNER_TARGET=chat\n" in datagram
    assert b"\nFLETTNER_ROLLOUT=chat-o3\n" in datagram
    assert b"FLETTNER_WHY\n" + (23).to_bytes(8, "little") + b"two\nlines --api-key ***\n" in datagram
    assert line == ""


def test_a_record_rejected_by_journald_goes_to_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with journald(tmp_path, monkeypatch) as (_, stderr):
        (tmp_path / "journal").unlink()
        structlog.get_logger("flettner").error("launched", target="chat")
        stderr.seek(0)
        line = json.load(stderr)

    assert (line["event"], line["target"], line["level"]) == ("launched", "chat", "error")


def test_a_terminal_gets_plain_lines() -> None:
    stream = Terminal()
    configure("info", stream)

    structlog.get_logger("flettner").info("launched", target="chat")

    assert len(stream.getvalue().splitlines()) == 1
    assert "launched" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
