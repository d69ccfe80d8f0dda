"""The contract of every policy, built-in or third-party: CHECKS, each a function of the policy's class.

Use in a test (needs `pytest` and `hypothesis`):

    from flettner.policies.conformance import CHECKS

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_it_is_a_good_policy(check):
        check(MyPolicy)

Each check raises AssertionError with the expectation and the finding. `readings.py` builds
the readings and contexts of the checks and is public for other tests.
"""

import copy
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import MISSING, FrozenInstanceError, asdict, fields, is_dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from pydantic import TypeAdapter

from flettner.agent.domain.digest import digest
from flettner.agent.domain.model import Proposal, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.conformance.readings import CASES, NOON, steady
from flettner.policies.conformance.safety_checks import harms

PROPOSALS = TypeAdapter(list[Proposal])
PLAIN = (bool, int, float, str, tuple, dict)
RULE = re.compile(r"[A-Z]{1,8}-?\d{1,3}")  # "Q1", "ACME-12"
ANYTHING = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))

ConformanceCheck = Callable[[type], None]


def it_says_what_it_is_for(plugin: type) -> None:
    """The first line of the module is a sentence, which `flettner policies` shows."""
    lines = (sys.modules[plugin.__module__].__doc__ or "").strip().splitlines()
    _require(
        bool(lines) and re.fullmatch(r"[A-Z0-9].+\.", lines[0]) is not None,
        f"the first line of {plugin.__module__} is a sentence that states its purpose",
    )


def it_is_a_frozen_dataclass_of_plain_options(plugin: type) -> None:
    """Options come from TOML and have defaults; a policy keeps no state between two calls."""
    _require(is_dataclass(plugin), f"{plugin.__name__} is a dataclass")
    policy = plugin()
    for option in fields(policy):
        has_default = option.default is not MISSING or option.default_factory is not MISSING
        _require(has_default, f"the option {option.name} has a default")
        value = getattr(policy, option.name)
        _require(type(value) in PLAIN, f"the option {option.name} is plain TOML, not {type(value).__name__}")
    changed = False
    with suppress(FrozenInstanceError, AttributeError, TypeError):
        setattr(policy, next((option.name for option in fields(policy)), "anything"), 1)
        changed = True
    _require(not changed, f"{plugin.__name__} is frozen: @dataclass(frozen=True, slots=True)")


def it_refuses_options_that_make_no_sense(plugin: type) -> None:
    """-1, NaN and infinity raise a ValueError that names the option."""
    policy = plugin()
    for option in fields(policy):
        if type(getattr(policy, option.name)) not in (int, float):
            continue
        for value in (-1, float("nan"), float("inf")):
            try:
                plugin(**{option.name: value})
            except ValueError as error:
                _require(
                    option.name in str(error), f"the refusal of {option.name} = {value} names it: {error}"
                )
            else:
                _require(False, f"{option.name} = {value} is refused with a ValueError")


def it_tolerates_a_reading_in_which_nothing_is_known(plugin: type) -> None:
    nothing = Reading(
        at=NOON, server="chat-r0", span_s=30.0, coverage=1.0, running=steady(0), waiting=steady(0)
    )
    _propose(plugin(), nothing, Context(setting={}, slo=Slo()))


def it_is_pure(*plugins: type) -> None:
    """The same reading and context give the same proposals and stay unchanged."""

    @ANYTHING
    @given(CASES)
    def any_case(case: tuple[Reading, Context]) -> None:
        reading, context = case
        before = copy.deepcopy((reading, context))
        for plugin in plugins:
            policy, who = plugin(), plugin.__name__
            proposals = _propose(policy, reading, context)
            again, other = _propose(policy, reading, context), _propose(plugin(), *before)
            _require(proposals == again, f"{who}: two calls give the same proposals")
            _require(proposals == other, f"{who}: another instance gives the same proposals")
            _require((reading, context) == before, f"{who}: reading and context stay unchanged")

    any_case()


def its_proposals_are_complete(*plugins: type) -> None:
    """Proposals are serialisable and give numbers, expected effect, risks and source."""

    @ANYTHING
    @given(CASES)
    def any_case(case: tuple[Reading, Context]) -> None:
        reading, context = case
        for plugin in plugins:
            proposals = _propose(plugin(), reading, context)
            again = PROPOSALS.validate_json(PROPOSALS.dump_json(proposals))
            _require(again == proposals, f"{plugin.__name__}: its proposals survive JSON")
            for proposal in proposals:
                _require(digest(asdict(proposal)).startswith("sha256:"), "a proposal can be digested")
                _require_complete(proposal)

    any_case()


def it_does_no_harm(*plugins: type) -> None:
    """The proposals violate no limit of `policies/conformance/safety_checks.py`."""

    @ANYTHING
    @given(CASES)
    def any_case(case: tuple[Reading, Context]) -> None:
        reading, context = case
        for plugin in plugins:
            faults = harms(reading, context, _propose(plugin(), reading, context))
            _require(not faults, f"{plugin.__name__} does no harm, but: {'; '.join(faults)}")

    any_case()


CHECKS_OF_ANY_CASE: tuple[Callable[..., None], ...] = (
    it_is_pure,
    its_proposals_are_complete,
    it_does_no_harm,
)
"""These take several policies, which then share the drawn cases: to draw a case is what takes time."""

CHECKS: tuple[ConformanceCheck, ...] = (
    it_says_what_it_is_for,
    it_is_a_frozen_dataclass_of_plain_options,
    it_refuses_options_that_make_no_sense,
    it_tolerates_a_reading_in_which_nothing_is_known,
    *CHECKS_OF_ANY_CASE,
)


def _propose(policy: Any, reading: Reading, context: Context) -> list[Proposal]:  # noqa: ANN401 - any plug-in
    proposals: Sequence[Proposal] = policy.propose(reading, context)
    _require(isinstance(proposals, Iterable), f"propose gives a list or tuple, not {proposals!r}")
    for proposal in proposals:
        _require(isinstance(proposal, Proposal), f"propose gives Proposals, not {proposal!r}")
    return list(proposals)


def _require_complete(proposal: Proposal) -> None:
    rule = proposal.rule
    _require(
        RULE.fullmatch(rule) is not None, f"the rule {rule!r} consists of letters and a number: Q1, ACME-12"
    )
    _require(re.search(r"\d", proposal.why) is not None, f"{rule}: `why` contains numbers: {proposal.why!r}")
    for name in ("expects", "risks", "source", "evidence"):
        _require(bool(getattr(proposal, name)), f"{rule}: `{name}` is not empty")
    _require(bool(proposal.to) or proposal.klass == "note", f"{rule}: changes a knob, or is a note")
    _require(not (proposal.mitigation and proposal.klass == "note"), f"{rule}: a note mitigates nothing")


def _require(holds: bool, wanted: str) -> None:
    if not holds:
        raise AssertionError(f"must hold: {wanted}")
