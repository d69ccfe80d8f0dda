"""How long a server's start took, by the file to which it writes its log."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flettner.actuators.host import procfs
from flettner.actuators.process.start_log import read_start
from flettner.actuators.vllm.start_log import describe_start

SERVER = """
import os, sys, time
at = time.strftime("%m-%d %H:%M:%S", time.localtime(time.time() + {after_s}))
print("(APIServer pid=1) INFO 01-01 00:00:00 [api_server.py:616] Starting vLLM server on http://127.0.0.1:1")
print("(EngineCore pid=9) INFO Model loading took 13.45 GiB and 2.023807 seconds")
print("init engine (profile, create kv cache, warmup model) took 39.39 s (compilation: 24.79 s)")
print(f"(APIServer pid={{os.getpid()}}) INFO {{at}} [api_server.py:616] Starting vLLM server on http://127.0.0.1:2")
print("INFO:     Application startup complete.", flush=True)
print("ready", file=sys.stderr, flush=True)
time.sleep(60)
"""


@contextmanager
def server(after_s: float, output: object) -> Iterator[procfs.Process]:
    command = (sys.executable, "-c", SERVER.format(after_s=after_s))
    with subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE) as child:  # type: ignore[call-overload]
        assert child.stderr.readline() == b"ready\n"
        process = procfs.process(child.pid)
        assert process is not None
        try:
            yield process
        finally:
            child.kill()


def test_a_start_is_measured_by_the_log_of_the_same_process(tmp_path: Path) -> None:
    """A file to which earlier starts wrote, too."""
    with (tmp_path / "log").open("wb") as log, server(85.0, log) as process:
        seconds, lines = read_start(process)

    assert seconds == pytest.approx(85.0, abs=30.0)
    assert describe_start(lines) == [
        "of the last start 2 s loaded the model, 25 s compiled, 15 s for the KV cache and graphs"
    ]


@pytest.mark.parametrize("after_s", [-3600.0, 7 * 3600.0], ids=["before its start", "hours later"])
def test_a_time_that_cannot_be_is_not_known(tmp_path: Path, after_s: float) -> None:
    with (tmp_path / "log").open("wb") as log, server(after_s, log) as process:
        assert read_start(process) == (None, ())


def test_a_pipe_is_left_to_its_reader() -> None:
    with server(85.0, subprocess.PIPE) as process:
        assert read_start(process) == (None, ())
