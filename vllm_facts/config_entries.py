"""The entries of vLLM's `--config FILE` as the words that vLLM makes of them.

As vLLM 0.32 utils/argparse_utils.py: load_config_file. They stand before the command line's own, which win.
"""

import json
from collections.abc import Mapping

from vllm_facts.flag_table import ONE_WAY


def words_of(entries: Mapping[object, object]) -> list[str]:
    """In the order of the file."""
    return [word for key, value in entries.items() for word in _words(str(key), value)]


def _words(key: str, value: object) -> list[str]:
    flag = f"--{key}"
    match value:
        case True:
            return [flag]
        case False:
            # vLLM looks for a flag called exactly `--no-KEY`, finds none with underscores, and drops the line
            dropped = "_" in key or key.replace("-", "_") in ONE_WAY or key.startswith("no-")
            return [] if dropped else [f"--no-{key}"]
        case []:
            return []
        case list():
            return [flag, *map(str, value)]
        case dict():
            return [flag, json.dumps(value)]
        case _:
            return [f"{flag}={value}"] if str(value).startswith("-") else [flag, str(value)]
