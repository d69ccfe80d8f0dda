"""Flags in the environment of a container.

vLLM itself reads none there. Its SageMaker images do: their entrypoint turns `SM_VLLM_MAX_NUM_SEQS=8` into
`--max-num-seqs 8`, and an empty value, or "true", into the flag alone.
"""

from collections.abc import Iterable, Mapping, Sequence

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.flag_table import ONE_WAY, SEVERAL
from flettner.vllm_facts.values import Value

_PREFIX = "SM_VLLM_"
_SCRIPTS = frozenset({"sagemaker-entrypoint.sh", "sagemaker_entrypoint.sh"})
_FIRST = ("vllm", "serve", "--port", "8080")  # required by SageMaker; SM_VLLM_PORT overrides it


def argv_in(entrypoint: Sequence[str], env: Iterable[str]) -> tuple[str, ...]:
    """Return the command line that the entrypoint makes of the environment; empty: it makes none."""
    if not entrypoint or entrypoint[-1].rpartition("/")[2] not in _SCRIPTS:
        return ()
    return (*_FIRST, *(word for line in env for word in _words(line)))


def with_flags(env: Iterable[str], changes: Mapping[str, Value]) -> list[str]:
    """Return the environment with these knobs changed. Raises FlagError."""
    kept = [line for line in env if _knob(line) not in changes]
    return [*kept, *(_line(knob, value) for knob, value in changes.items() if not _left_out(knob, value))]


def _words(line: str) -> list[str]:
    name, _, value = line.partition("=")
    if not name.startswith(_PREFIX) or value.lower() == "false":
        return []
    flag = "--" + name.removeprefix(_PREFIX).lower().replace("_", "-")
    return [flag] if value.lower() in {"", "true"} else [flag, value]


def _knob(line: str) -> str:
    """Return the canonical name of the knob; empty: the line is no flag."""
    name = line.partition("=")[0]
    if not name.startswith(_PREFIX):
        return ""
    plain = name.removeprefix(_PREFIX).lower()
    flag = "--" + plain.replace("_", "-")
    return next(iter(parse_setting([*_FIRST[:2], flag])), plain)  # a port is no part of a setting


def _left_out(knob: str, value: Value) -> bool:
    return value is None or (value is False and knob in ONE_WAY)


def _line(knob: str, value: Value) -> str:
    text = "" if isinstance(value, bool) else str(value)
    if knob in SEVERAL and len(text.split()) > 1:
        raise FlagError(f"{knob} = {value!r}: {_PREFIX}{knob.upper()} takes one value only")
    return f"{_PREFIX}{'NO_' * (value is False)}{knob.upper()}={text}"
