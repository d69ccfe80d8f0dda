"""docs/reference/knobs.md: every flag of vLLM that trimtab knows, with who says so."""

from collections.abc import Iterator
from typing import Any

from tests.integration.docs.markdown import code, table
from tests.integration.docs.rules_page import known
from vllm_facts.catalogue.facts import Effects

HEAD = """\
# Knobs

The flags of `vllm serve` that trimtab knows, from vLLM 0.11 to 0.33. `trimtab knobs NAME` shows one.

- **class**: how bold a change is. `auto`: reversible and invisible to users, so mode `auto` may do it by
  itself. `gated`: a person must agree. `note`: only pointed out.
- **not tunable**: trimtab changes the flag only to values that `[targets.bounds.KNOB]` names.
- **start**: a `cold` change of the value compiles once more, a `warm` one does not.
- **raising it**: what raising the value, or turning it on, does: `+` more of it, `-` less, `±` either way.
  `kv`: tokens that the KV cache holds; `oom`: risk of running out of GPU memory; `quality`: of the answers.
- A flag that was removed, renamed, or came later says so behind its meaning.

This page is made of the code: `python -m tests.integration.docs.reference`.

"""


def document() -> str:
    rows = (
        (
            code(one["name"]),
            _accepted(one),
            f"{one['meaning']}{''.join(_versions(one))}",
            one["default"],
            str(Effects(**one["effects"])),
            f"{one['klass']}, {one['start']}{'' if one['tunable'] else ', not tunable'}",
            one["source"],
        )
        for one in known("knobs")
    )
    head = ("knob", "takes", "meaning", "default", "raising it", "class, start", "source")
    return HEAD + table(head, rows)


def _accepted(knob: dict[str, Any]) -> str:
    low, high, unit = knob["min"], knob["max"], knob["unit"]
    words = [f"{knob['type']} ({unit})" if unit else str(knob["type"])]
    words += [f"at least {low:g}"] if low is not None else []
    words += [f"at most {high:g}"] if high is not None else []
    if knob["choices"]:
        words.append(", ".join(map(str, knob["choices"])))
    return "; ".join(words)


def _versions(knob: dict[str, Any]) -> Iterator[str]:
    if knob["since"]:
        yield f" From {knob['since']}."
    if knob["removed"]:
        yield f" Before {knob['removed']}."
    if knob["today"]:
        yield f" Today: {knob['today'].rstrip('.')}."
    if knob["needs"]:
        yield f" Needs: {'; '.join(knob['needs'])}."
