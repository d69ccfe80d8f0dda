"""Conformance of every policy; a new `policies/NAME.py` that ends in `plugin = …` is discovered."""

from dataclasses import dataclass

import pytest

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.agent.plugins import loader
from flettner.policies.conformance import CHECKS, ConformanceCheck

FOUND = loader.list_plugins("policies")

each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


def test_policies_are_found() -> None:
    assert {*FOUND} >= {"admission", "prefill_budget"}


@each_check
@pytest.mark.parametrize("name", FOUND)
def test_each_policy_conforms(name: str, check: ConformanceCheck) -> None:
    check(loader.load_plugin("policies", name))


@dataclass
class Bad:
    size: float = 1.0
    memory: object = None

    def propose(self, _: Reading, __: Context) -> list[Proposal]:
        self.size += 1
        return [
            Proposal(
                rule="more",
                to={"max_num_seqs": 0},
                why="more " * int(self.size),
                expects="",
                risks="",
                source="",
            )
        ]


@each_check
def test_each_check_detects_a_violation(check: ConformanceCheck) -> None:
    """A policy that violates every other check but has a docstring and proposes nothing when idle."""
    calm = check.__name__ in {"it_says_what_it_is_for", "it_tolerates_a_reading_in_which_nothing_is_known"}
    if calm:
        check(Bad)
        return
    with pytest.raises(AssertionError, match="must hold: "):
        check(Bad)
