"""Objectives for latencies from the command line."""

import argparse
import re
from collections.abc import Iterable, Mapping

from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model import Objective

SHARE = 0.95  # of the requests
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s)")
_OPTIONS = {
    "ttft": ("time to first token", "500ms"),
    "itl": ("time between tokens", "50ms"),
    "e2e": ("duration", "20s"),
}


def add_objectives(parser: argparse.ArgumentParser, options: Iterable[str] = tuple(_OPTIONS)) -> None:
    for option in options:
        latency, example = _OPTIONS[option]
        text = f"objective for the {latency} of 95 %% of the requests, such as {example}"
        parser.add_argument(f"--{option}", metavar="T", help=text)


def read_objectives(args: argparse.Namespace) -> Mapping[str, float]:
    """Return the given objectives in seconds, by `ttft_s`, `itl_s` and `e2e_s`. Raises ConfigError."""
    given = {name: parse_objective(getattr(args, name), f"--{name}") for name in _OPTIONS}
    return {f"{name}_s": objective.under_s for name, objective in given.items() if objective is not None}


def parse_objective(text: str | None, option: str) -> Objective | None:
    """`500ms` or `1.5s`. Raises ConfigError, also for a number alone: `vllm bench serve` reads ms."""
    if text is None:
        return None
    match = _DURATION.fullmatch(text)
    if not match or not float(match[1]):
        raise ConfigError(f"{option} {text}: not a duration with its unit; write it as in 500ms or 1.5s")
    return Objective(under_s=float(match[1]) / (1000 if match[2] == "ms" else 1), share=SHARE)
