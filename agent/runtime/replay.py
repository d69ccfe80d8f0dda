"""Ask the policies again with what a daemon asked them, from its config and the document of its API."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flettner.agent.config.loader import Config
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.events import Observed
from flettner.agent.domain.state import State
from flettner.agent.machine.asking import Answers, ask
from flettner.agent.runtime.wiring import build_rules

_STATE = cache(lambda: TypeAdapter(State))
_OBSERVED = cache(lambda: TypeAdapter(Observed))


def replay(config: Config, document: Mapping[str, Any]) -> Answers:
    """`document`: of `GET /v1/targets/{name}/inputs`. Raises ConfigError if there is nothing to ask with."""
    try:
        state = _STATE().validate_python(document["state"])
        observed = _OBSERVED().validate_python(document["observed"])
    except (KeyError, ValidationError) as error:
        raise ConfigError(f"the inputs of the policies cannot be read by this flettner: {error}") from error
    target = next((target for target in config.targets if target.name == state.target), None)
    if target is None:
        raise ConfigError(f"the config has no target {state.target}")
    rules = build_rules(config, target)
    context = rules.context(state, observed)
    if context is None or observed.reading is None:
        raise ConfigError(f"{state.target}: no server was known, or nothing was measured")
    return ask(rules, state, observed.reading, context, observed.at)
