"""A vLLM engine in a process of its own, with flettner's scheduler class."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.real_vllm import ENVIRONMENT, REPOSITORY, real_vllm

IN_ONE_PROCESS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@dataclass(frozen=True, slots=True)
class Engine:
    """`about`: what the worker says of itself at its start."""

    about: dict[str, Any]
    _process: "subprocess.Popen[str]"

    def ask(self, **wanted: float) -> dict[str, Any]:
        """Generate what is wanted; the worker says how."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return read(self._process)


def read(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the engine ended with status {process.wait()}; its log is in engine.log")
    return dict(json.loads(line))


@contextmanager
def start(folder: Path) -> Iterator[Engine]:
    """Start it; `folder` gets its log and its control socket."""
    vllm = real_vllm()
    worker = Path(__file__).with_name("scheduler_worker.py")
    control = {"PYTHONPATH": str(REPOSITORY), "FLETTNER_CONTROL": str(folder / "control.sock")}
    folder.mkdir(parents=True, exist_ok=True)
    with (
        (folder / "engine.log").open("w") as log,
        subprocess.Popen(
            [vllm.python, worker, vllm.model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **ENVIRONMENT, **IN_ONE_PROCESS, **control},
        ) as process,
    ):
        try:
            yield Engine(read(process), process)
        finally:
            process.kill()
