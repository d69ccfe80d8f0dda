"""The form of sources: each names something that a reader can open."""

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from flettner.lint.rules import all_lints
from flettner.vllm_facts.releases import cite
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck

REPOSITORY = Path(__file__).parents[2]

PRIVATE = re.compile(
    r"rulebook|benchmark report|testing log|tuning (guide|reference)|triage|playbook|\bseed S|\bS[0-4]\b|"
    r"(parallelism|serving|throughput|troubleshooting) guide|production (alerts|checklist)",
    re.IGNORECASE,
)
"""Documents that no reader has."""

FORMS = tuple(
    re.compile(form + r"( \([^()]+\))?")
    for form in (
        r"vLLM 0\.\d+ vllm/[\w/]+\.py(: .+)?",
        r"[\w.-]+/[\w.-]+#\d+",
        r"https://[\w.-]+/[^\s;()]*",
        r"vllm-project/recipes [\w./-]+\.(md|yaml)",
    )
)
REFERENCE = re.compile(r"(vLLM 0\.\d+ )?vllm/[\w/]+\.py|[\w-]+/[\w.-]+#\d+|https://|vllm-project/recipes ")
NONE_PUBLIC = re.compile(r"no public measurement|vLLM names the two flags")


def references(source: str) -> list[str]:
    """The references of a source, without the evidence against the finding."""
    return source.partition("; against it: ")[0].split("; ")


def faults(source: str) -> list[str]:
    """What in a source, as it is shown, cannot be opened."""
    unreadable = [
        reference for reference in references(source) if not any(form.fullmatch(reference) for form in FORMS)
    ]
    return unreadable + [match[0] for match in PRIVATE.finditer(source)]


def evidence_faults(evidence: str) -> list[str]:
    """What is wrong with a sentence about measurements: no reference, or a private one."""
    referenced = not evidence or REFERENCE.search(evidence) or NONE_PUBLIC.search(evidence)
    return ([] if referenced else [evidence]) + [match[0] for match in PRIVATE.finditer(evidence)]


def code_of(*packages: str) -> list[Path]:
    """The modules and tables of the packages."""
    files = [path for package in packages for path in sorted((REPOSITORY / package).rglob("*"))]
    return [path for path in files if path.suffix in (".py", ".toml")]


def documented_checks() -> list[DeploymentCheck]:
    """The lints, those of a table row by row, as docs/reference/rules.md lists them."""
    return [part for lint in all_lints() for part in lint.parts()]


def source_texts() -> dict[str, str]:
    """The sources in rules, policies and facts by place, as they are shown, as far as they are constant."""
    texts: dict[str, str] = {}
    for path in code_of("lint", "policies", "vllm_facts"):
        where = path.relative_to(REPOSITORY)
        if path.suffix == ".toml":
            rows = _rows_of(tomllib.loads(path.read_text()))
            texts |= {f"{where}: {text}": cite(text) for text in rows}
            continue
        module = import_module(".".join(("flettner", *where.with_suffix("").parts)))
        for node in _texts(ast.parse(path.read_text())):
            if text := _evaluate(node, vars(module)):
                texts[f"{where}:{node.lineno}"] = cite(text)
    return texts


def _rows_of(entry: object) -> Iterator[str]:
    """The sources in a table and in those inside it."""
    for key, value in entry.items() if isinstance(entry, dict) else ():
        if key in ("source", "issue"):
            yield str(value)
        else:
            for part in value if isinstance(value, list) else [value]:
                yield from _rows_of(part)


def _texts(node: ast.AST) -> Iterator[ast.expr]:
    """The strings of a tree, f-strings as a whole, without the sentences of evidence."""
    if isinstance(node, ast.keyword) and (node.arg or "").startswith("evidence"):
        return
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


def _evaluate(node: ast.expr, names: dict[str, object]) -> str:
    """The text of an expression if it begins as a source does and needs the module's names only."""
    try:
        text = eval(compile(ast.Expression(node), "", "eval"), dict(names))  # noqa: S307 - our own code
    except NameError:
        return ""
    return text if isinstance(text, str) and REFERENCE.match(text) else ""
