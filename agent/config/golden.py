"""`[targets.quality]`: from its table to the core's terms, with the operator's own prompts."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agent.config.tables import QualityTable
from agent.domain.errors import ConfigError
from agent.quality.golden_prompts import LEAST, GoldenPromptOptions

MOST = 1000  # prompts; each is asked three times
LARGEST_FILE = 2**20


def exam(table: QualityTable, prompts: Path | None) -> GoldenPromptOptions:
    """Raises ConfigError, which says what is wrong with the file of prompts."""
    wishes = GoldenPromptOptions(command=table.command, always=table.always, at_most_s=table.at_most)
    return wishes if prompts is None else replace(wishes, prompts=read(prompts), own=True)


def read(path: Path) -> tuple[str, ...]:
    """Each line is a prompt, or a JSON object that has one as `prompt`. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error}") from error
    if len(content) > LARGEST_FILE:
        raise ConfigError(f"{path}: is larger than {LARGEST_FILE} bytes: keep the prompts few and short")
    found = tuple(dict.fromkeys(_prompts(path, text)))
    if not LEAST <= len(found) <= MOST:
        raise ConfigError(
            f"{path}: has {len(found)} different prompts: {LEAST} at least, or wrong answers cannot be told "
            f"from chance, and {MOST} at most; some dozens are good"
        )
    return found


def _prompts(path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), start=1):
        written = line.strip()
        if not written.startswith("{"):
            if written:
                yield written
            continue
        try:
            prompt = json.loads(written).get("prompt")
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: line {number} begins as JSON but is none: {error}") from error
        if not isinstance(prompt, str) or not prompt.strip():
            raise ConfigError(f'{path}: line {number} has no "prompt" that is a text')
        yield prompt
