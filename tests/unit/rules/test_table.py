"""Every rule has a place in the order, and a slug that says what it is."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from flettner.lint.rules import all_lints
from flettner.rules.table import CAUSES, ORDER, REASONS, cause_of, name_of, slug_of

REPOSITORY = Path(__file__).parents[3]
ID = re.compile(r"[A-Z]{1,3}\d{1,2}")
SLUGS = [slug for rank in ORDER for slug in rank.rules.values()]


def policy_rules() -> Iterator[tuple[str, str]]:
    """The ids of rules in the built-in policies, each with its place in the source."""
    for path in sorted((REPOSITORY / "policies").rglob("*.py")):
        if "conformance" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and ID.fullmatch(node.value):
                yield f"{path.relative_to(REPOSITORY)}:{node.lineno}", node.value


def test_every_rule_of_a_built_in_policy_and_of_lint_has_a_place_and_a_slug() -> None:
    rules = {rule: where for where, rule in policy_rules()}
    assert {"Q1", "HC7", "PM3"} <= rules.keys()
    rules |= {rule: f"lint: {lint.reports}" for lint in all_lints() for rule in lint.rules}

    lacking = [f"{rule} ({where})" for rule, where in sorted(rules.items()) if rule not in REASONS]
    assert not lacking, (
        f"no place in the order: {'; '.join(lacking)}. Add `ID = 'slug'` to rules/order.toml, to the rank "
        "whose reason fits, by urgency, and the id to each [[yield]] that names rules of its kind"
    )


def test_each_slug_is_a_few_words_of_its_own() -> None:
    form = re.compile(r"[a-z]+(-[a-z]+){1,4}")

    assert [slug for slug in SLUGS if not form.fullmatch(slug) or len(slug) > 40] == []
    assert [slug for slug, count in Counter(SLUGS).items() if count > 1] == []


def test_a_rule_is_shown_by_its_id_and_slug() -> None:
    assert name_of("Q1") == "Q1 queue-cap-too-low"
    assert (name_of("ACME1"), slug_of("ACME1")) == ("ACME1", "")


def test_a_refused_flag_ranks_first() -> None:
    """Nothing outranks what keeps a server from starting."""
    band = next(band for band in ORDER if "V1" in band.rules)
    assert next(iter(band.rules)) == "V1"


def test_a_cause_has_rules_with_a_place_and_each_rule_one_cause() -> None:
    rules = [rule for cause in CAUSES for rule in cause.rules]

    assert len(set(rules)) == len(rules)
    assert set(rules) <= REASONS.keys()
    assert [cause_of(rule) for rule in ("Q1", "X1", "P2")] == ["sequence cap", "prompts computed again", ""]
