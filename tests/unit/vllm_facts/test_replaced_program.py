"""The program of a command line is replaced by that of another environment."""

import pytest

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import replace_program

NEW, PYTHON = "/opt/new/bin/vllm", "/opt/new/bin/python"


@pytest.mark.parametrize(
    ("line", "program", "expected", "present"),
    [
        ("vllm serve m --port 1", NEW, f"{NEW} serve m --port 1", "vllm"),
        ("/a/bin/python3.12 /a/bin/vllm serve m", NEW, f"{NEW} serve m", "/a/bin/vllm"),
        ("python -W ignore /a/server.py --model m", NEW, f"{NEW} --model m", "/a/server.py"),
        ("numactl -N 0 /a/bin/vllm serve m", NEW, f"numactl -N 0 {NEW} serve m", "/a/bin/vllm"),
        (
            "/a/bin/python -m vllm.entrypoints.openai.api_server --model m",
            PYTHON,
            f"{PYTHON} -m vllm.entrypoints.openai.api_server --model m",
            "/a/bin/python",
        ),
    ],
)
def test_replaces_the_program_and_nothing_else(line: str, program: str, expected: str, present: str) -> None:
    assert replace_program(line.split(), program) == (expected.split(), present)


@pytest.mark.parametrize(
    ("line", "program", "why"),
    [
        ("vllm serve m", PYTHON, "request the vllm beside it"),
        ("python /a/bin/vllm serve m", PYTHON, "request the vllm beside it"),
        ("python -m vllm.entrypoints.openai.api_server --model m", NEW, "request the Python of the other"),
    ],
)
def test_refuses_a_program_of_another_kind(line: str, program: str, why: str) -> None:
    with pytest.raises(FlagError, match=why):
        replace_program(line.split(), program)
