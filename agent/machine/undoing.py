"""The way back from the last promotion, as a change that an operator asks for. Pure."""

from dataclasses import dataclass
from datetime import datetime

from flettner.agent.domain.model import SERVERS, Outcome
from flettner.agent.domain.state import State
from flettner.agent.domain.upgrade import MODEL, SERVED_NAME, without_gpus
from flettner.vllm_facts.deprecated_flags import ENVIRONMENT
from flettner.vllm_facts.values import ENV, Knob, Setting, is_same


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """`to`: the values from before the promotion; empty if there is no way back, and `why` tells."""

    to: Setting
    promoted_at: datetime | None = None
    why: str = ""


def undo_last(state: State) -> Undo:
    """The values before the last promotion of flags, as far as they are what a person may ask for.

    Only while its values are still in force: after a change by hand nobody knows what the way back is.
    Servers that were spared return by an abort.
    """
    blue = state.fleet.blue
    last = next((outcome for outcome in reversed(state.outcomes) if _changed_flags(outcome)), None)
    if last is None:
        return Undo(to={}, why="no promotion is remembered, so there is nothing to undo")
    if blue is None:
        return Undo(to={}, promoted_at=last.at, why="no server runs that could be changed")
    in_force, asked = {**blue.setting, **blue.start}, _asked(last)
    moved = [knob for knob in asked if not is_same(in_force.get(knob), last.to[knob])]
    if moved:
        why = (
            f"{', '.join(moved)} was changed since the promotion at {last.at:%Y-%m-%d %H:%M} UTC: propose "
            "the values that you want (`flettner propose`)"
        )
        return Undo(to={}, promoted_at=last.at, why=why)
    return Undo(to={knob: last.before.get(knob) for knob in asked}, promoted_at=last.at)


def _changed_flags(outcome: Outcome) -> bool:
    return outcome.result == "promoted" and SERVERS not in outcome.to


def _asked(outcome: Outcome) -> tuple[Knob, ...]:
    """Without what nobody asked for: GPUs that the engine chose, the served name that another model took, and
    the variables in which an older release has a flag of the change. A newer release ignores those.
    """
    asked = without_gpus(outcome.to)
    followed = {SERVED_NAME} if MODEL in asked else set[Knob]()
    followed |= {f"{ENV}{name}" for name, flag in ENVIRONMENT.items() if flag.by in asked}
    return tuple(knob for knob in asked if knob not in followed)
