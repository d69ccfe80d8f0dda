"""Reads `order.toml`: the ranks of the rules, their slugs, and the rules that exclude each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flettner.vllm_facts.fact_tables import read_rows

ANY = "any change"


@dataclass(frozen=True, slots=True)
class RuleRank:
    """Rules of one rank, the most urgent first, and the reason for the rank."""

    name: str
    why: str
    rules: Mapping[str, str]  # the slug of each id


@dataclass(frozen=True, slots=True)
class Yield:
    """If a rule of `to` wins, all of `rules` are dropped except those of `but`."""

    rules: tuple[str, ...]
    to: tuple[str, ...]
    why: str
    but: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of late requests, and the rules that remove it."""

    name: str
    rules: tuple[str, ...]


_FILE = Path(__file__).with_name("order.toml")

ORDER = read_rows(_FILE, "rank", RuleRank)
YIELDS = read_rows(_FILE, "yield", Yield)

CAUSES = read_rows(_FILE, "cause", Cause)


def _rules_of(rank: str) -> tuple[str, ...]:
    return next(tuple(each.rules) for each in ORDER if each.name == rank)


HEALTH = _rules_of("health")
"""Rules about a running server that is not fit to be tuned."""

START = _rules_of("does not start")

REMARKS = _rules_of("remarks")
"""Rules whose notes hold for most servers."""

REASONS = {rule: rank.why for rank in ORDER for rule in rank.rules}
"""The reason for a rule's rank."""

_SLUGS = {rule: slug for rank in ORDER for rule, slug in rank.rules.items()}


def cause_of(rule: str) -> str:
    """The cause of late requests that the rule removes; "" for other rules."""
    return next((cause.name for cause in CAUSES if rule in cause.rules), "")


def slug_of(rule: str) -> str:
    """A few words about a rule: `queue-cap-too-low`; "" for a rule of a third party."""
    return _SLUGS.get(rule, "")


def name_of(rule: str) -> str:
    """`Q1 queue-cap-too-low`; the id alone for a rule of a third party."""
    return f"{rule} {slug_of(rule)}".rstrip()
