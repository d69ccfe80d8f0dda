"""Notebooks: the Python of their cells, and the shell commands in these."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.installed import with_installed_release
from flettner.vllm_facts.launch_files.launch import Launch
from flettner.vllm_facts.launch_files.python_source import read_python
from flettner.vllm_facts.launch_files.python_values import parse_cells
from flettner.vllm_facts.launch_files.shell_script import read_script, without_places

_SHELL_CELL = re.compile(r"%%(?:bash|sh|script\b[^\n]{0,200})[^\n]{0,200}\n")
_SHELL_LINE = re.compile(r"[ \t]{0,40}!(?P<command>\S(?:[^\n]*\\\n)*[^\n]*)")


def read_notebook(text: str) -> list[Launch]:
    """The servers and engines that the cells start. Raises FlagError."""
    cells = list(_code_cells(text))
    launches = [launch for code, lines in cells for launch in _read_shells(code, lines)]
    launches += read_python(parse_cells(text, cells))
    code = "\n".join(code for code, _ in cells)
    return sorted(with_installed_release(launches, code), key=lambda launch: launch.start)


def _code_cells(text: str) -> Iterator[tuple[str, list[int]]]:
    """The code of each cell, and the place of each of its lines in the file."""
    try:
        cells = json.loads(text)["cells"]
        sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FlagError("not a notebook of Jupyter") from error
    at = 0
    for source in sources:
        lines = source if isinstance(source, list) else [source]
        if not all(isinstance(line, str) for line in lines):
            continue
        places: list[int] = []
        for line in lines:
            written = next((form for form in _written_forms(line) if text.find(form, at) >= 0), "")
            at = text.find(written, at) if written else at
            places += [at] * (line.count("\n") if line.endswith("\n") else line.count("\n") + 1)
            at += len(written)
        code = "".join(lines)
        count = code.count("\n") + 1
        yield code, (places + [at] * count)[:count]


def _written_forms(line: str) -> tuple[str, str]:
    return json.dumps(line, ensure_ascii=False), json.dumps(line)


def _read_shells(code: str, lines: list[int]) -> Iterator[Launch]:
    """The commands of a shell's cell, or of the lines that begin with `!`."""
    if cell := _SHELL_CELL.match(code):
        parts = [(code[cell.end() :], 1)]
    else:
        parts = [
            (found["command"], code.count("\n", 0, found.start()))
            for found in _SHELL_LINE.finditer(code)
            if not code[: found.start()] or code[found.start() - 1] == "\n"
        ]
    for script, line in parts:
        with suppress(FlagError):
            for launch in read_script(script):
                below = script.count("\n", 0, launch.start)
                place = lines[min(line + below, len(lines) - 1)]
                yield replace(launch, start=place, words=without_places(launch.words))
