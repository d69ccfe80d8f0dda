"""What every policy must do; a new `policies/NAME.py` that ends in `plugin = …` is found here by itself."""

import copy
import re
from dataclasses import MISSING, FrozenInstanceError, asdict, fields, is_dataclass
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import TypeAdapter

import policies
from agent.digest import digest
from agent.model import Bound, Proposal, Slo
from agent.ports import Context, Policy
from agent.reading import Reading
from tests.policies.readings import CONTEXTS, NOON, READINGS, steady

FOUND = [import_module(f"policies.{module.name}") for module in iter_modules(policies.__path__)]
PLUGINS = [module for module in FOUND if hasattr(module, "plugin")]
PROPOSALS = TypeAdapter(list[Proposal])

each_policy = pytest.mark.parametrize("module", PLUGINS, ids=lambda module: module.__name__)


def test_policies_are_found() -> None:
    assert {module.__name__ for module in PLUGINS} >= {"policies.admission", "policies.prefill_budget"}


@each_policy
def test_the_module_says_what_it_is_for(module: ModuleType) -> None:
    assert re.match(r"[A-Z].+\.$", (module.__doc__ or "").splitlines()[0])


@each_policy
def test_the_plugin_is_a_frozen_dataclass_of_plain_options_with_defaults(module: ModuleType) -> None:
    policy = module.plugin()
    options = fields(policy)

    assert is_dataclass(policy)
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        setattr(policy, options[0].name, 1)

    assert all(option.default is not MISSING or option.default_factory is not MISSING for option in options)
    assert all(type(getattr(policy, o.name)) in (bool, int, float, str, tuple, dict) for o in options)


@each_policy
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_an_option_that_makes_no_sense_is_refused_by_name(module: ModuleType, value: float) -> None:
    policy = module.plugin()
    numbers = [o.name for o in fields(policy) if type(getattr(policy, o.name)) in (int, float)]

    for name in numbers:
        with pytest.raises(ValueError, match=name):
            module.plugin(**{name: value})


@each_policy
def test_a_reading_in_which_everything_is_unknown_is_tolerated(module: ModuleType) -> None:
    policy: Policy = module.plugin()
    nothing = Reading(
        at=NOON, server="chat-r0", span_s=30.0, coverage=1.0, running=steady(0), waiting=steady(0)
    )

    policy.propose(nothing, Context(setting={}, slo=Slo()))


@each_policy
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reading=READINGS, context=CONTEXTS)
def test_any_reading_gets_a_proper_answer(module: ModuleType, reading: Reading, context: Context) -> None:
    """Pure, serialisable, told with numbers, inside the bounds, and never on a window half seen."""
    policy: Policy = module.plugin()
    before = copy.deepcopy((reading, context))

    proposals = list(policy.propose(reading, context))

    assert proposals == list(policy.propose(reading, context)) == list(module.plugin().propose(*before))
    assert (reading, context) == before
    assert PROPOSALS.validate_json(PROPOSALS.dump_json(proposals)) == proposals
    assert not proposals or reading.coverage >= 0.8
    for proposal in proposals:
        assert digest(asdict(proposal)).startswith("sha256:")
        assert re.fullmatch(r"[A-Z]{1,2}\d{1,2}", proposal.rule)
        assert re.search(r"\d", proposal.why)
        assert proposal.expects
        assert proposal.risks
        assert proposal.source
        assert proposal.evidence
        assert proposal.to or proposal.klass == "note"
        assert not (proposal.mitigation and proposal.klass == "note")
        for knob, value in proposal.to.items():
            assert value != context.setting.get(knob)
            _stays_inside(context.bounds.get(knob, Bound()), value)


def _stays_inside(bound: Bound, value: object) -> None:
    assert not bound.allowed or value in bound.allowed
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        assert bound.min is None or value >= bound.min
        assert bound.max is None or value <= bound.max
