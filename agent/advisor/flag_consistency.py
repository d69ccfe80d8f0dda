"""Whether the flags that a person gives can be those of the server that was looked at."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose

from agent.domain.reading import Reading
from agent.terminal.tables import value
from vllm_facts.values import Knob, Setting, Value

CAPS = ("max_num_active_seqs", "max_num_seqs")
KV_DTYPE = "kv_cache_dtype"
_SAME_DTYPE = {"fp8": "fp8_e4m3"}  # vLLM's own short form


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagMismatches:
    """One sentence for each thing that does not fit. `beyond`: more ran than these flags let run."""

    said: tuple[str, ...] = ()
    beyond: bool = False

    def __bool__(self) -> bool:
        return bool(self.said)


def doubts(given: Setting, told: Setting, reading: Reading, model: str) -> FlagMismatches:
    """`given`: by the person. `told`: by the server. `model`: the name that it serves under, or ""."""
    beyond = _beyond({**told, **given}, reading)
    said = [beyond] if beyond else []
    names = _names(given)
    if model and names and model.rstrip("/") not in names:
        said.append(f"it serves {model}, --flags {' or '.join(names)}")
    known = dict(told)
    if reading.facts.get("cache_dtype") == "auto":
        known[KV_DTYPE] = "auto"
    said += [
        f"the server says {knob} {value(present)}, --flags {value(given[knob])}"
        for knob, present in known.items()
        if given.get(knob) is not None and not _alike(given[knob], present)
    ]
    return FlagMismatches(said=tuple(said), beyond=bool(beyond))


def _beyond(given: Setting, reading: Reading) -> str:
    """How many more ran than may; of all data-parallel engines together."""
    size = given.get("data_parallel_size")
    engines = size if isinstance(size, int) and size > 0 else 1
    caps: Mapping[Knob, int] = {
        knob: cap * engines for knob in CAPS if isinstance(cap := given.get(knob), int) and cap > 0
    }
    knob = min(caps, key=lambda name: caps[name], default=None)
    if knob is None or reading.running.high <= caps[knob]:
        return ""
    times = f" for each of {engines} engines" if engines > 1 else ""
    return f"{reading.running.high:.0f} requests ran at once, --flags allow {knob} {given[knob]}{times}"


def _names(given: Setting) -> list[str]:
    """Under which these flags serve; the server's pages have the first."""
    served, model = given.get("served_model_name"), given.get("model")
    if served is not None:
        return str(served).split()
    return [] if model is None else [str(model).rstrip("/")]


def _alike(one: Value, other: Value) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return isclose(one, other, rel_tol=1e-6)
    return _SAME_DTYPE.get(str(one), str(one)) == _SAME_DTYPE.get(str(other), str(other))
