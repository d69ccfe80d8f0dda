"""Scripts that a shell does not run to the end of the server's command."""

import pytest

from flettner.vllm_facts.launch_files.recognise import read_launches


@pytest.mark.parametrize(
    ("rest", "line"),
    [
        ("--port 9000\n  &\necho on\n", 3),
        ("--port 9000 > log\n\n| tee log\n", 4),
        ("--port 9000 \\\n  &\necho on\n", 0),
        ("--port 9000 &\necho on\n", 0),
        ("--port 9000 |\n tee log\n", 0),
        ("--port 9000\necho on & wait\n", 0),
        ("--port 9000\n", 0),
    ],
)
def test_an_operator_at_the_start_of_a_line_is_a_fault(rest: str, line: int) -> None:
    (launch,) = read_launches("run.sh", f"#!/bin/bash\nvllm serve m {rest}")

    told = launch.entry_fault.why if launch.entry_fault else ""
    assert told.startswith(f"line {line} begins with") if line else not told


def test_a_line_of_a_folded_text_is_no_line_of_the_script() -> None:
    command = "bash -c 'vllm serve m --port 9000\n      && echo on'"
    text = f"services:\n  a:\n    image: a\n    command: >\n      {command}\n"
    (launch,) = read_launches("compose.yaml", text)

    assert launch.entry_fault is None
