"""Objectives for latencies from the command line."""

import re

from agent.domain.errors import ConfigError
from agent.domain.model import Objective

SHARE = 0.95  # of the requests
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s)?")


def parse_objective(text: str | None, option: str) -> Objective | None:
    """`500ms`, `1.5s` or `1.5`. Raises ConfigError."""
    if text is None:
        return None
    found = _DURATION.fullmatch(text)
    if not found or not float(found[1]):
        raise ConfigError(f"{option} {text}: not a duration; write it as in 500ms or 1.5s")
    return Objective(under_s=float(found[1]) / (1000 if found[2] == "ms" else 1), share=SHARE)
