"""docs/reference/knobs.md: every flag of vLLM that flettner knows, with its source."""

from collections.abc import Iterator
from typing import Any

from flettner.vllm_facts.catalogue.facts import Effects
from tests.integration.docs.markdown import code, table
from tests.integration.docs.rules_page import listed

HEAD = """\
# Knobs

The flags of `vllm serve` that flettner knows, from vLLM 0.11 to 0.33. `flettner knobs NAME` shows one.

- **class**: `auto` is reversible and invisible to users, and may be applied in mode `auto`; `gated` needs
  approval; `note` is advice only.
- **not tunable**: flettner changes the flag only to values in `[targets.bounds.KNOB]`.
- **start**: a `cold` change compiles again, a `warm` one does not.
- **raising it**: the effect of raising the value, or turning it on: `+` more, `-` less, `±` either.
  `kv`: tokens in the KV cache; `oom`: risk of running out of GPU memory; `quality`: of the answers.
- The meaning ends with the release that added, removed or renamed the flag.

This page is generated: `python -m tests.integration.docs.reference`.

"""


def document() -> str:
    rows = (
        (
            code(knob["name"]),
            _accepted(knob),
            f"{knob['meaning']}{''.join(_versions(knob))}",
            knob["default"],
            str(Effects(**knob["effects"])),
            f"{knob['klass']}, {knob['start']}{'' if knob['tunable'] else ', not tunable'}",
            knob["source"],
        )
        for knob in listed("knobs")
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
