"""vLLM's `--config FILE`: a YAML file whose entries stand for flags of the command line."""

from collections.abc import Mapping, Sequence

import yaml

from vllm_facts import config_entries
from vllm_facts.errors import FlagError


def path_in(argv: Sequence[str]) -> str:
    """The file that the command line names; empty when there is none. Raises FlagError.

    Only the two words `--config FILE` count: vLLM reads past `--config=FILE`.
    """
    if "--config" not in argv:
        return ""
    if argv.count("--config") > 1:
        raise FlagError("--config is given twice: vLLM takes one file only")
    at = argv.index("--config") + 1
    if at == len(argv):
        raise FlagError("--config is not followed by a file")
    return argv[at]


def words_of(text: str, path: str) -> list[str]:
    """The flags in the file, spelled as vLLM would spell them on the command line. Raises FlagError."""
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise FlagError(f"--config {path}{line} is not YAML: correct the file") from error
    if entries is None:
        return []
    if not isinstance(entries, Mapping):
        raise FlagError(f"--config {path} holds no `flag: value` lines: correct the file")
    return config_entries.words_of(entries)
