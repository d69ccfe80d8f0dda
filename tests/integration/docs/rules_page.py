"""docs/reference/rules.md: the rules of the policies and of `flettner lint`, with options and sources."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from flettner.rules.table import ORDER, slug_of
from flettner.vllm_facts.references import DOCS
from flettner.vllm_facts.releases import cite
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck
from tests.integration.docs.markdown import code, table
from tests.support.sources import documented_checks

HEAD = """\
# Rules

The rules about vLLM's flags, with their evidence and sources. Suggestions and findings name a rule
by letters and a number, and by a few words that say what is wrong. `flettner policies NAME` shows one policy.
[Policies of the daemon](../live-rules.md) lists the inputs of each policy,
[writing a policy](../writing-a-policy.md) describes how to add one.

This page is generated: `python -m tests.integration.docs.reference`.

## Order

If several rules apply, the first in this order becomes the suggestion; the others are evaluated again once
its outcome is known. Rules that relieve a missed objective by different causes are suggested as
[one change](../live-rules.md#two-causes-at-once).

"""


LINT_HEAD = """\
## Rules of `flettner lint`

Each entry is one check: what it reports; the measurements for and against what the rule says, where public
ones exist; and its source. A check without measurements states what vLLM's own code does. Nothing here is a
promise for your load: the daemon measures each change before it keeps it.
"""


def document() -> str:
    order = table(
        ("", "rules", "why"),
        [
            (rank.name, ", ".join(f"{code(rule)} {slug}" for rule, slug in rank.rules.items()), rank.why)
            for rank in ORDER
        ],
    )
    sections = [
        f"{HEAD}{order}",
        "## Policies of the daemon\n\nEach but `model` is on unless `[policies]` has `NAME = false`.\n",
    ]
    sections += map(_policy, listed("policies"))
    sections.append(LINT_HEAD)
    sections += _rules()
    return "\n".join(sections)


def listed(what: str) -> list[dict[str, Any]]:
    """Return the rows of `flettner policies --json` or `flettner knobs --json` that flettner itself ships."""
    command = [sys.executable, "-m", "flettner", what, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    documents: list[dict[str, Any]] = json.loads(done.stdout)
    return [document for document in documents if document.get("origin", "flettner") == "flettner"]


def _policy(policy: dict[str, Any]) -> str:
    parts = [f"### {code(policy['name'])}\n", f"{policy['does']}\n", f"{policy['details']}\n"]
    rows = [
        (code(option["name"]), code(json.dumps(option["default"])), option["meaning"])
        for option in policy["options"]
    ]
    if rows:
        parts.append(table((f"option of `[policies.{policy['name']}]`", "default", ""), rows))
    if policy["sources"]:
        parts.append(f"Sources: {'; '.join(policy['sources'])}.\n")
    return "\n".join(parts)


def _rules() -> Iterator[str]:
    """Yield a section for each rule, with a list of its checks in the order of the modules."""
    lints = documented_checks()
    letters_first = sorted({rule for lint in lints for rule in lint.rules}, key=lambda rule: (rule[0], rule))
    for rule in letters_first:
        yield f"### `{rule}` {slug_of(rule)}\n"
        yield "\n".join(_check(lint) for lint in lints if rule in lint.rules) + "\n"


def _check(lint: DeploymentCheck) -> str:
    """Describe one check: what it reports, and what speaks for and against its change."""
    parts = (
        ("evidence", lint.evidence_for),
        ("against", lint.evidence_against),
        ("source", cite(lint.source)),
    )
    lines = [f"- {lint.reports}", *(f"  - {name}: {_with_links(text)}" for name, text in parts if text)]
    return "\n".join(lines)


def _with_links(text: str) -> str:
    """Write references as links: pages by their host, files of vLLM at the tag of their release."""
    text = re.sub(r"https://([\w.-]+)/[^\s;,()]*", _link_page, text)
    text = re.sub(r"([\w.-]+/[\w.-]+)#(\d+)", r"[\g<0>](https://github.com/\1/issues/\2)", text)
    recipe = r"(vllm-project/recipes) ([\w./-]+\.(?:md|yaml))"
    text = re.sub(recipe, r"[\1 \2](https://github.com/\1/blob/main/\2)", text)
    file = r"vLLM (0\.\d+) (vllm/[\w/]+\.py)"
    return re.sub(file, r"[\g<0>](https://github.com/vllm-project/vllm/blob/v\1.0/\2)", text)


def _link_page(match: re.Match[str]) -> str:
    """Return a link named `vLLM docs serving/parallelism_scaling`, or by the host of another site."""
    address, host = match.group(0, 1)
    name = f"vLLM docs {address.removeprefix(DOCS).strip('/')}" if address.startswith(DOCS) else host
    return f"[{name}]({address})"
