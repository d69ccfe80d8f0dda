"""Quotes and brackets within expansions belong to them, as bash has it."""

import shutil
import subprocess

import pytest

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.shell_words import split_commands

EXPANSIONS = [
    '${HOST:-"${ADDRESS}"}',
    '"${HOST:-"a b"}"',
    "${NAME:-'}'}",
    "\"${NAME:-'}'}\"",
    '"$(head -1 "a b" | tr "(" \'"\')"',
    '"$(printf "%s" "$(basename "$PWD")")"',
    "$(( (1 + 2) * 3 ))",
    '"${A:-$(date "+%s)")}"',
    '"$(echo \\")"',
    "$(# it's (a comment\n  echo a)",
    '"`head -1 "a"`"',
    "${A:-\\}}",
]


@pytest.mark.parametrize("expansion", EXPANSIONS)
def test_an_expansion_is_one_word(expansion: str) -> None:
    first, second = split_commands(f"start --name {expansion} --port 9\nstop")

    assert [word.text for word in second] == ["stop"]
    assert [first[0].text, first[1].text, *(word.text for word in first[3:])] == [
        "start",
        "--name",
        "--port",
        "9",
    ]
    assert first[2].live


@pytest.mark.parametrize("expansion", EXPANSIONS)
def test_bash_reads_the_same_words(expansion: str) -> None:
    script = f"count() {{ echo $#; }}\nA=a HOST=h NAME=n\ncount --name {expansion} --port 9\n"
    counted = subprocess.run([_bash(), "-c", script], capture_output=True, text=True, check=False).stdout

    assert counted.splitlines()[-1:] in (["4"], ["5"]), "5: the result of an unquoted one has a space"


@pytest.mark.parametrize("text", ['"${A:-"b}', '"$(a "b)"', "${A:-'}", "$(a", '"${A"', "${", '"$('])
def test_what_is_not_closed_is_told(text: str) -> None:
    with pytest.raises(FlagError, match="is not closed"):
        split_commands(f"start {text}")


def test_deeply_nested_brackets_are_no_problem() -> None:
    depth = 20_000
    [words] = split_commands("start " + "$(" * depth + ")" * depth)

    assert len(words) == 2


def _bash() -> str:
    bash = shutil.which("bash")
    assert bash is not None, "bash is needed to compare with"
    return bash
