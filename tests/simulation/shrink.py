"""Shrinks a failing scenario: removes each unneeded act and resets each unneeded field."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import TypeVar

from tests.simulation.scenario import Act, Scenario

AnyScenario = TypeVar("AnyScenario", bound=Scenario)


def shrunk(scenario: AnyScenario, fails: Callable[[AnyScenario], bool]) -> AnyScenario:
    """Return the smallest scenario that still fails; assumes `fails(scenario)`."""
    while True:
        smaller = next((candidate for candidate in simpler(scenario) if fails(candidate)), None)
        if smaller is None:
            return scenario
        scenario = smaller


def simpler(scenario: AnyScenario) -> Iterator[AnyScenario]:
    for at in range(len(scenario.acts)):
        yield scenario.without(at)
    for name in (
        parameter.name
        for parameter in reversed(fields(scenario))
        if parameter.name not in {"seed", "acts", "strategy"}
    ):
        plain = getattr(_plain(scenario), name)
        if getattr(scenario, name) != plain and (name != "servers" or scenario.strategy != "replace"):
            yield replace(scenario, **{name: plain})


def pasted(scenario: Scenario) -> str:
    """The source code of the scenario."""
    kind = type(scenario)
    parts = [
        f"{f.name}={getattr(scenario, f.name)!r}"
        for f in fields(kind)
        if _differs(scenario, _plain(scenario), f.name)
    ]
    acts = "".join(f"        {_act(act)},\n" for act in scenario.acts)
    ending = f"    acts=(\n{acts}    ),\n" if acts else ""
    return (
        f"{kind.__name__}(\n    seed={scenario.seed},\n"
        + "".join(f"    {part},\n" for part in parts)
        + f"{ending})"
    )


def _plain(scenario: AnyScenario) -> AnyScenario:
    return type(scenario)(seed=0)


def _differs(scenario: object, plain: object, name: str) -> bool:
    return name not in {"seed", "acts"} and getattr(scenario, name) != getattr(plain, name)


def _act(act: Act) -> str:
    plain = Act(what=act.what)
    parts = [f"{f.name}={getattr(act, f.name)!r}" for f in fields(Act) if _differs(act, plain, f.name)]
    return f"Act({', '.join([f'what={act.what!r}', *parts])})"
