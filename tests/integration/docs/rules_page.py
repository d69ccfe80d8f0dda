"""docs/reference/rules.md: the rules of the policies and of `trimtab lint`, with options and sources."""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import lint.rules
from agent.cli.knobs import _sources
from agent.plugins import loader
from lint.precedence import ORDER
from tests.integration.docs.markdown import code, table

HEAD = """\
# Rules

The rules about vLLM's flags, with their sources. A rule has a letter and a number, which suggestions and
findings name. `trimtab policies NAME` shows one policy. [Policies of the daemon](../live-rules.md) lists the
inputs of each policy, [writing a policy](../writing-a-policy.md) describes how to add one.

This page is generated: `python -m tests.integration.docs.reference`.

## Order

If several rules apply, the first in this order becomes the suggestion; the others are evaluated again once
its outcome is known.

"""


def document() -> str:
    order = table(
        ("", "rules", "why"), [(band.name, " ".join(map(code, band.rules)), band.why) for band in ORDER]
    )
    said = [
        f"{HEAD}{order}",
        "## Policies of the daemon\n\nEach is on unless `[policies]` has `NAME = false`.\n",
    ]
    said += map(_policy, known("policies"))
    said.append("## Rules of `trimtab lint`\n")
    said.append(table(("rules", "subject", "sources"), _lints()))
    return "\n".join(said)


def known(what: str) -> list[dict[str, Any]]:
    """The output of `trimtab policies --json` or `trimtab knobs --json`, without third-party policies."""
    command = [sys.executable, "-m", "agent.main", what, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return [one for one in found if one.get("origin", "trimtab") == "trimtab"]


def _policy(policy: dict[str, Any]) -> str:
    parts = [f"### {code(policy['name'])}\n", f"{policy['does']}\n", f"{policy['details']}\n"]
    rows = [
        (code(one["name"]), code(json.dumps(one["default"])), one["meaning"]) for one in policy["options"]
    ]
    if rows:
        parts.append(table((f"option of `[policies.{policy['name']}]`", "default", ""), rows))
    if policy["sources"]:
        parts.append(f"Sources: {'; '.join(policy['sources'])}.\n")
    return "\n".join(parts)


def _lints() -> Iterator[tuple[str, str, str]]:
    for module in iter_modules(lint.rules.__path__, "lint.rules."):
        found = import_module(module.name)
        rules = dict.fromkeys(rule for check in found.LINTS for rule in check.rules)
        sources = dict.fromkeys(map(_plain, _sources(loader.read_source(module.name), vars(found))))
        does = (inspect.getdoc(found) or "").split("\n\n")[0]
        yield " ".join(map(code, rules)), does, "; ".join(filter(None, sources))


def _plain(source: str) -> str:
    """A source without the name of its rule, which is in the first column."""
    return re.sub(r"^rulebook \w+; ", "", source)
