"""Flags that vLLM refuses at start, for commands that predict it instead of starting it."""

from flettner.agent.domain.errors import ConfigError
from flettner.lint.rules.flags import LINTS
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.validity.engine import find_problems


def check_flags(config: ServeConfig) -> list[str]:
    """Why another release than the known one may refuse the flags. Raises ConfigError if every one does."""
    found = [finding for lint in LINTS for finding in lint.check(config) if not finding.env]
    certain = [one.why for one in found if one.severity == "error"]
    refused = list(dict.fromkeys([*certain, *(one.why for one in find_problems(config))]))
    if refused:
        raise ConfigError(f"vLLM refuses this command: {'; '.join(refused)}")
    return [one.why for one in found if (one.severity, one.klass) == ("warning", "gated")]
