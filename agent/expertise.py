"""What the expert knows, found where it lies in `policies` and `sensors`, without naming it.

Light enough for a command that somebody waits for.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agent.facts import Card, Lint, Model
from agent.model import Knob, Value
from agent.precedence import Precedence, as_said

if TYPE_CHECKING:
    from agent.reading import Reading  # `trimtab lint` has none, and would wait for its classes


def lints() -> tuple[Lint, ...]:
    """`LINTS` of every policies/lint_*.py, by the module's name."""
    package = import_module("policies")
    found = sorted(module.name for module in iter_modules(package.__path__))
    modules = [import_module(f"policies.{name}") for name in found if name.startswith("lint_")]
    return tuple(lint for module in modules for lint in getattr(module, "LINTS", ()))


def stands_still(reading: "Reading") -> bool:
    """Requests are there, and neither a prompt nor an answer gets on."""
    return bool(_asked("policies.saying", "stands_still", reading))


def card_of(name: str) -> Card | None:
    card: Card | None = _asked("policies.hardware", "card_of", name)
    return card


def model_of(name: str) -> Model | None:
    """A well-known model by its name."""
    model: Model | None = _asked("policies.models", "model_of", name)
    return model


def model_from(config: Mapping[str, object], name: str) -> Model | None:
    """The model that a `config.json` describes."""
    model: Model | None = _asked("policies.models", "from_config", config, name)
    return model


def alters_outputs(knob: Knob) -> bool:
    """Whether another value of the knob may change what is answered; of a knob that nobody knows it may."""
    return bool(_asked("policies.knobs", "alters_outputs", knob))


def tunable(knob: Knob) -> bool:
    """Whether trimtab may change the knob; one that the catalogue does not have it may not."""
    return bool(_asked("policies.knobs", "tunable", knob))


def misfit(knob: Knob, value: Value) -> str:
    """Why vLLM would not take the value; empty where that is not known."""
    return str(_asked("policies.knobs", "misfit", knob, value) or "")


def flags() -> frozenset[Knob]:
    """All flags of vLLM, also those that trimtab has no facts of."""
    named: frozenset[Knob] = getattr(_module("policies.knobs"), "FLAGS", frozenset())
    return named


def precedence() -> Precedence:
    """Orders proposals or findings; without anybody's word on it they stay as they come."""
    ranked: Precedence = getattr(_module("policies.precedence"), "ranked", as_said)
    return ranked


def scrapes() -> ModuleType:
    """Reads /metrics pages: `totals(body)` of one, `sample(before, after, …)` between two."""
    return import_module("sensors.vllm_totals")


def _asked(module: str, name: str, *args: object) -> Any:  # noqa: ANN401 - each caller knows the type
    function = getattr(_module(module), name, None)
    return None if function is None else function(*args)


def _module(name: str) -> ModuleType | None:
    return import_module(name) if find_spec(name) else None
