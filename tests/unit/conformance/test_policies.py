"""Conformance of every policy; a new `policies/NAME.py` that ends in `plugin = …` is discovered."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import Phase, settings

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.agent.plugins import loader
from flettner.policies import conformance
from flettner.policies.conformance import CHECKS, CHECKS_OF_ANY_CASE, ConformanceCheck
from tests.support.sampling import examples

FOUND = loader.list_plugins("policies")
CASES = examples(1000)

each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


def test_policies_are_found() -> None:
    assert {*FOUND} >= {"admission", "prefill_budget"}


@pytest.mark.parametrize("check", CHECKS[: -len(CHECKS_OF_ANY_CASE)], ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", FOUND)
def test_each_policy_conforms(name: str, check: ConformanceCheck) -> None:
    check(loader.load_plugin("policies", name))


@pytest.mark.parametrize("check", CHECKS_OF_ANY_CASE, ids=lambda check: check.__name__)
def test_the_policies_conform_in_any_case(
    monkeypatch: pytest.MonkeyPatch, check: Callable[..., None]
) -> None:
    monkeypatch.setattr(conformance, "ANYTHING", settings(conformance.ANYTHING, max_examples=CASES))
    check(*(loader.load_plugin("policies", name) for name in FOUND))


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
def test_each_check_detects_a_violation(monkeypatch: pytest.MonkeyPatch, check: ConformanceCheck) -> None:
    """A policy that violates every other check but has a docstring and proposes nothing when idle."""
    first_case = settings(conformance.ANYTHING, phases=[Phase.generate])  # not the least one, which takes 7 s
    monkeypatch.setattr(conformance, "ANYTHING", first_case)
    calm = check.__name__ in {"it_says_what_it_is_for", "it_tolerates_a_reading_in_which_nothing_is_known"}
    if calm:
        check(Bad)
        return
    with pytest.raises(AssertionError, match="must hold: "):
        check(Bad)
