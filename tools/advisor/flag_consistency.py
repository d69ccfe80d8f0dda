"""Compares the flags given by the user with the server's reported flags and observed load."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose

from flettner.agent.domain.reading import Reading
from flettner.tools.terminal.values import format_value
from flettner.vllm_facts.values import Knob, Setting, Value

CAPS = ("max_num_active_seqs", "max_num_seqs")
KV_DTYPE = "kv_cache_dtype"
_SAME_DTYPE = {"fp8": "fp8_e4m3"}  # vLLM's own short form


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagMismatches:
    """One message per mismatch, and the given flags that the server contradicts.

    `over_cap`: more requests ran than the given flags allow. `other_server`: they name another model.
    """

    messages: tuple[str, ...] = ()
    knobs: frozenset[Knob] = frozenset()
    over_cap: bool = False
    other_server: bool = False

    def __bool__(self) -> bool:
        return bool(self.messages)

    def correct(self, given: Setting, reported: Setting) -> Setting:
        """The flags to judge the server by: as given, but for those that the server contradicts."""
        if self.other_server or self.over_cap:
            return reported
        return {**{knob: value for knob, value in given.items() if knob not in self.knobs}, **reported}


def find_mismatches(given: Setting, reported: Setting, reading: Reading, model: str) -> FlagMismatches:
    """`given`: by the user. `reported`: by the server. `model`: its served model name, or ""."""
    over_cap = _check_cap({**reported, **given}, reading)
    messages = [over_cap] if over_cap else []
    names = _served_names(given)
    other = bool(model and names and model.rstrip("/") not in names)
    if other:
        messages.append(f"the server serves {model}, --flags {' or '.join(names)}")
    comparable = dict(reported)
    if reading.facts.get("cache_dtype") == "auto":
        comparable[KV_DTYPE] = "auto"
    knobs = [
        knob
        for knob, present in comparable.items()
        if given.get(knob) is not None and not _are_equal(given[knob], present)
    ]
    messages += [
        f"the server reports {knob} {format_value(comparable[knob])}, --flags {format_value(given[knob])}"
        for knob in knobs
    ]
    return FlagMismatches(
        messages=tuple(messages), knobs=frozenset(knobs), over_cap=bool(over_cap), other_server=other
    )


def _check_cap(given: Setting, reading: Reading) -> str:
    """Return the message if more requests ran than the cap of all data-parallel engines together allows."""
    size = given.get("data_parallel_size")
    engines = size if isinstance(size, int) and size > 0 else 1
    caps: Mapping[Knob, int] = {
        knob: cap * engines for knob in CAPS if isinstance(cap := given.get(knob), int) and cap > 0
    }
    knob = min(caps, key=lambda name: caps[name], default=None)
    if knob is None or reading.running.high <= caps[knob]:
        return ""
    times = f" for each of {engines} engines" if engines > 1 else ""
    return f"{reading.running.high:.0f} requests ran concurrently, --flags allow {knob} {given[knob]}{times}"


def _served_names(given: Setting) -> list[str]:
    """Return the served model names of these flags; the server reports the first."""
    served, model = given.get("served_model_name"), given.get("model")
    if served is not None:
        return str(served).split()
    return [] if model is None else [str(model).rstrip("/")]


def _are_equal(value: Value, other: Value) -> bool:
    if isinstance(value, (int, float)) and isinstance(other, (int, float)):
        return isclose(value, other, rel_tol=1e-6)
    return _SAME_DTYPE.get(str(value), str(value)) == _SAME_DTYPE.get(str(other), str(other))
