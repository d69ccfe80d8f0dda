"""`flettner policies` and `flettner knobs`: the installed policies and the catalogue of vLLM flags."""

import argparse
import ast
import inspect
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeGuard

from flettner.agent.config.loader import find_policies_dir
from flettner.agent.domain.errors import ConfigError
from flettner.agent.plugins import loader
from flettner.agent.plugins.option_errors import suggest_name
from flettner.tools.cli.dispatch import Subparsers, add_command
from flettner.tools.terminal.tables import format_sentence, format_table
from flettner.tools.terminal.values import format_value
from flettner.vllm_facts.flag_table import SHORT
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.releases import cite

_SHORT_LIST = 30  # names; all of a list that is not longer are shown
_NEAR = 5  # names to suggest
_MIN_MATCH = 2  # shorter text occurs in too many names


def add_policies(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "policies", "list the policies with their options and sources")
    parser.add_argument("name", nargs="?", metavar="NAME", help="show only this policy")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_list_policies)
    parser.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="include the policies_dir of this config"
    )


def add_knobs(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "knobs", "list the vLLM flags that flettner knows and their properties")
    parser.add_argument("name", nargs="?", metavar="NAME", help="show all properties of this flag")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_list_knobs)


def _list_policies(args: argparse.Namespace) -> int:
    folder = find_policies_dir(args.config) if args.config else None
    origins = {name: other.origin for name, other in loader.third_party_policies("policies", folder).items()}
    names = _chosen(args.name, loader.list_plugins("policies", folder=folder))
    policies = [_policy(name, origins.get(name, "flettner"), folder) for name in names]
    text = f"{json.dumps(policies, indent=2)}\n" if args.json else "\n".join(map(_format_policy, policies))
    sys.stdout.write(text)
    return 0


def _policy(name: str, origin: str, folder: Path | None) -> dict[str, Any]:
    plugin = loader.load_plugin("policies", name, folder=folder)
    module, source = sys.modules[plugin.__module__], loader.read_source(plugin.__module__)
    return {
        "name": name,
        "origin": origin,
        "does": inspect.getdoc(module) or "",
        "details": inspect.getdoc(plugin) or "",
        "options": [_option(option, source) for option in loader.options_of(plugin).values()],
        "sources": sorted(set(_sources(source, vars(module)))),
    }


def _option(option: Field[Any], source: str) -> dict[str, Any]:
    """Return the option as JSON; its meaning is the comment behind the field."""
    comment = re.search(rf"^ +{re.escape(option.name)}: .*?# *(.+)$", source, re.MULTILINE)
    default = option.default_factory() if option.default_factory is not MISSING else option.default
    return {
        "name": option.name,
        "type": inspect.formatannotation(option.type),
        "required": default is MISSING,
        "default": None if default is MISSING else default,
        "meaning": comment[1] if comment else "",
    }


def _sources(source: str, names: Mapping[str, object]) -> Iterator[str]:
    """Yield the sources of a policy's proposals: a string, or the value of a name in the module."""
    given = (node.value for node in ast.walk(ast.parse(source)) if _is_source(node))
    for value_given in given:
        text = value_given.args[0] if isinstance(value_given, ast.Call) else value_given  # of `cite`
        if isinstance(text, ast.Constant):
            yield cite(str(text.value))
        for node in ast.walk(value_given):
            fact_value = names.get(node.id) if isinstance(node, ast.Name) else None
            if isinstance(fact_value, str):
                yield fact_value


def _is_source(node: ast.AST) -> TypeGuard[ast.keyword]:
    return isinstance(node, ast.keyword) and node.arg == "source"


def _format_policy(policy: dict[str, Any]) -> str:
    of = "" if policy["origin"] == "flettner" else f" (of {policy['origin']})"
    text = format_sentence(f"{policy['name']}{of}: {policy['does']}")
    text += "".join(format_sentence(f"  {line}".rstrip()) for line in policy["details"].splitlines())
    rows = [
        (
            f"  {o['name']}",
            o["type"],
            "(required)" if o["required"] else format_value(o["default"]),
            o["meaning"],
        )
        for o in policy["options"]
    ]
    if rows:
        text += format_table(("  OPTION", "TYPE", "DEFAULT", "MEANING"), rows)
    return text + "".join(format_sentence(f"  source: {fact_value}") for fact_value in policy["sources"])


def _list_knobs(args: argparse.Namespace) -> int:
    catalogue = KNOBS
    names = _chosen(args.name and SHORT.get(args.name, args.name), catalogue)
    if args.json:
        text = f"{json.dumps([asdict(_facts(catalogue[name])) for name in names], indent=2)}\n"
    elif args.name:
        facts = _facts(catalogue[names[0]])
        given = ((field.name, getattr(facts, field.name)) for field in fields(facts))
        text = format_table(("FACT", "VALUE"), [row for name, fact in given for row in _rows(name, fact)])
    else:
        text = format_table(
            ("KNOB", "CLASS", "START", "VLLM", "MEANING"),
            [(name, *_brief(_facts(catalogue[name]))) for name in names],
        )
    sys.stdout.write(text)
    return 0


def _brief(facts: Any) -> tuple[str, ...]:  # noqa: ANN401 - a dataclass of the catalogue
    """Return the class, start, vLLM releases and meaning; empty text where one is unknown."""
    klass, start, since, removed, meaning = (
        getattr(facts, name, None) or "" for name in ("klass", "start", "since", "removed", "meaning")
    )
    releases = [f"from {since}"] * bool(since) + [f"before {removed}"] * bool(removed)
    return klass, start, " ".join(releases), meaning


def _rows(name: str, fact: object) -> Iterator[tuple[str, str]]:
    """Return a row for a fact, a row for each item of a list, and none for an absent value."""
    fact_value = str(fact) if is_dataclass(fact) else fact
    if fact_value is None or fact_value in ("", ()):
        return
    if not isinstance(fact_value, tuple):
        yield name, format_value(fact_value)
    elif not any(map(is_dataclass, fact_value)):
        yield (
            name,
            ", ".join(map(format_value, fact_value)) if name == "choices" else format_value(fact_value[0]),
        )
        yield from (("", format_value(more)) for more in fact_value[1:] if name != "choices")


def _facts(facts: object) -> Any:  # noqa: ANN401 - a dataclass of the catalogue
    if isinstance(facts, type) or not is_dataclass(facts):
        raise ConfigError(f"vllm_facts/knobs.py: KNOBS holds {facts!r}, which is not a dataclass")
    return facts


def _chosen(name: str | None, names: Collection[str]) -> list[str]:
    if name is None:
        return list(names)
    plain = name.lstrip("-").replace("-", "_")
    if plain not in names:
        raise ConfigError(f"{name}: unknown{_suggest_names(plain, names)}")
    return [plain]


def _suggest_names(plain: str, names: Collection[str]) -> str:
    """Return the nearest names, all names of a short list, or how to list them."""
    if len(names) <= _SHORT_LIST:
        return suggest_name(plain, names)
    near = get_close_matches(plain.lower(), names, n=_NEAR)
    inside = sorted(name for name in names if plain.lower() in name) if len(plain) > _MIN_MATCH else []
    nearest = list(dict.fromkeys([*near, *inside[:_NEAR]]))[:_NEAR]
    if not nearest:
        return "; without a name the command lists all of them"
    return f"; did you mean {', '.join(nearest)}?"
