"""Errors of a server in sleep mode: whether it slept when they came. Pure."""

import re

from flettner.vllm_facts.serve_config import ServeConfig

_PARTS = frozenset({"weights", "kv_cache"})
_SLEEPS = re.compile(r"to fall asleep\b|\"POST /sleep(?:\?\S*)? HTTP/1\.[01]\" 200\b")
_WAKES = re.compile(r"to wake up(?: tags (?P<tags>[^.\n]{0,80}))?|\"POST /wake_up HTTP/1\.[01]\" 200\b")
_CRASH = "an illegal memory access"


def sleeps_at_crash(config: ServeConfig) -> bool:
    """Whether weights or KV cache were not mapped at the first crash of a kernel."""
    asleep = frozenset[str]()
    for line in config.log:
        if _CRASH in line:
            return bool(asleep)
        if _SLEEPS.search(line):
            asleep = _PARTS
        elif wakes := _WAKES.search(line):
            woken = {part for part in _PARTS if part in (wakes["tags"] or "")}
            asleep -= woken or _PARTS
    return False


def has_slept(config: ServeConfig) -> bool:
    return any(_SLEEPS.search(line) for line in config.log)


FUNCTIONS = (sleeps_at_crash, has_slept)
