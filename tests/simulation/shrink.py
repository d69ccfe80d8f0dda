"""A failing script made small: without each act, and with each ordinary setting, that it does not need."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from tests.simulation.script import Act, Script

PLAIN = Script(seed=0)


def shrunk(script: Script, fails: Callable[[Script], bool]) -> Script:
    """The smallest that still fails; `fails(script)` is taken for granted."""
    while True:
        smaller = next((one for one in simpler(script) if fails(one)), None)
        if smaller is None:
            return script
        script = smaller


def simpler(script: Script) -> Iterator[Script]:
    for at in range(len(script.acts)):
        yield script.without(at)
    for name in ("whole", "exam", "impatient", "ours", "mode", "green", "servers"):
        plain = getattr(PLAIN, name)
        if getattr(script, name) != plain and (name != "servers" or script.strategy != "replace"):
            yield replace(script, **{name: plain})


def pasted(script: Script) -> str:
    """As it is written into a test."""
    told = [f"{f.name}={getattr(script, f.name)!r}" for f in fields(Script) if _says(script, PLAIN, f.name)]
    acts = "".join(f"        {_act(act)},\n" for act in script.acts)
    ending = f"    acts=(\n{acts}    ),\n" if acts else ""
    return f"Script(\n    seed={script.seed},\n" + "".join(f"    {one},\n" for one in told) + f"{ending})"


def _says(one: object, plain: object, name: str) -> bool:
    return name not in {"seed", "acts"} and getattr(one, name) != getattr(plain, name)


def _act(act: Act) -> str:
    plain = Act(what=act.what)
    told = [f"{f.name}={getattr(act, f.name)!r}" for f in fields(Act) if _says(act, plain, f.name)]
    return f"Act({', '.join([f'what={act.what!r}', *told])})"
