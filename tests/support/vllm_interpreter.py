"""One interpreter of vLLM that runs scripts, because its import takes most of the time of a test."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tests.support.real_vllm import ENVIRONMENT, real_vllm

ANSWER_SCRIPTS = """
import contextlib, dataclasses, io, json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
for line in sys.stdin:
    script, question = json.loads(line)
    exec(script)
    sys.stdout.flush()
"""


class Ask(Protocol):
    def __call__(self, script: str, question: object, /) -> Any: ...  # noqa: ANN401 - any JSON


@contextmanager
def vllm_interpreter() -> Iterator[Ask]:
    """Run scripts. Each finds `parser` and `question` and prints one line of JSON, an array."""
    command = [str(real_vllm().python), "-c", ANSWER_SCRIPTS]
    env = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as vllm:
        assert vllm.stdin is not None
        assert vllm.stdout is not None
        lines, answers = vllm.stdin, vllm.stdout

        def ask(script: str, question: object) -> Any:  # noqa: ANN401 - any JSON
            lines.write(json.dumps([script, question]) + "\n")
            lines.flush()
            return json.loads(next(line for line in answers if line.startswith("[")))

        yield ask
