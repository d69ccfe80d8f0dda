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

import policies
from agent.cli.knobs import _sources
from agent.plugins import loader
from lint.precedence import ORDER
from tests.integration.docs.markdown import code, table

HEAD = """\
# Rules

What trimtab knows of vLLM's flags, and who says so. A rule has a letter and a number; suggestions and
findings name it. `trimtab policies NAME` shows one of the policies. [What the daemon
suggests](../live-rules.md) says what each policy needs to see,
[writing a policy](../writing-a-policy.md) how to add yours.

This page is made of the code: `python -m tests.integration.docs.reference`.

## Which rule is heard first

When several speak, the first of this order is acted on; the others are looked at again when its outcome
is known.

"""


def document() -> str:
    order = table(
        ("", "rules", "why"), [(band.name, " ".join(map(code, band.rules)), band.why) for band in ORDER]
    )
    said = [
        f"{HEAD}{order}",
        "## Policies of the daemon\n\nEach is on unless `[policies]` says `NAME = false`.\n",
    ]
    said += map(_policy, known("policies"))
    said.append("## Rules of `trimtab lint`\n")
    said.append(table(("rules", "what they look at", "sources"), _lints()))
    return "\n".join(said)


def known(what: str) -> list[dict[str, Any]]:
    """What `trimtab policies --json` or `trimtab knobs --json` says."""
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
    for module in iter_modules(policies.__path__, "policies."):
        if not module.name.startswith("policies.lint_"):
            continue
        found = import_module(module.name)
        rules = dict.fromkeys(rule for check in found.LINTS for rule in check.rules)
        sources = dict.fromkeys(map(_plain, _sources(loader.read_source(module.name), vars(found))))
        does = (inspect.getdoc(found) or "").split("\n\n")[0]
        yield " ".join(map(code, rules)), does, "; ".join(filter(None, sources))


def _plain(source: str) -> str:
    """Without the rule's own name, which stands beside it."""
    return re.sub(r"^rulebook \w+; ", "", source)
