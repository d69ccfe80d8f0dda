"""What a config file says in vain: keys that nothing reads beside the others, and bounds that no value meets.

Each is an error. Whoever wrote it believes that it holds.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from flettner.agent.config.cross_checks import target_suffix
from flettner.agent.config.tables import (
    ApiTable,
    BoundTable,
    ConfigTable,
    FileTable,
    TargetTable,
    WindowsTable,
)
from flettner.agent.machine.hot_knobs import HOT_FIRST
from flettner.agent.plugins.option_errors import quote
from flettner.primitives.address import Address
from flettner.vllm_facts.knobs import KNOBS, misfit, tunable
from flettner.vllm_facts.values import Knob

_NUMBERS = frozenset({"int", "float"})
_OF_OTHER_ENGINES = {
    "process": ("images", "a process is upgraded by `commands`"),
    "docker": ("commands", "a container is upgraded by `images`"),
    "kubernetes": ("commands", "a workload is upgraded by `images`"),
}
"""By the kind of the engine: the key of `[targets.upgrades]` that means nothing to it."""


def find_keys_without_effect(tables: FileTable, document: Mapping[str, Any]) -> Iterator[str]:
    """One line each with its key, what makes it idle, and what to write instead."""
    yield from _find_in_api(tables.api)
    yield from _find_in_windows(tables.windows, "windows")
    for index, target in enumerate(tables.targets):
        of = target_suffix(document, index)
        yield from _find_in_windows(target.windows, f"targets.windows{of}")
        yield from _find_in_target(target, of)
        for knob, table in target.bounds.items():
            name = f'"{knob}"' if "." in knob else knob
            head = f"[targets.bounds.{name}{of}]"
            yield from (f"{head}{problem}" for problem in _find_in_bound(knob, table))


def _find_in_api(api: ApiTable) -> Iterator[str]:
    if any(isinstance(listener, Address) for listener in api.listen):
        return
    given = {"tls_cert": api.tls_cert, "trusted_proxies": api.trusted_proxies}
    for key in (key for key, value in given.items() if value):
        yield f"[api] {key}: has no effect at a unix socket: add an address to listen, or remove it"


def _find_in_windows(table: WindowsTable, name: str) -> Iterator[str]:
    if table.allowed or table.frozen or table.holidays:
        return
    for key in ("outside", "edge"):
        if key in _own(table):
            yield f"[{name}] {key}: has no effect without periods: give allowed, frozen or holidays here"


def _find_in_target(target: TargetTable, of: str) -> Iterator[str]:
    strategy, upgrades = target.engine.strategy, target.upgrades
    kind = target.engine.kind
    key, instead = _OF_OTHER_ENGINES.get(kind, ("", ""))
    if key and getattr(upgrades, key):
        yield f"[targets.upgrades{of}] {key}: has no effect with kind = {quote(kind)}: {instead}"
    if (kind, strategy) == ("process", "replace"):
        yield (
            f'[targets.engine{of}] strategy: "replace" needs several servers, and a target of processes has '
            'one: write "surge", "swap" or "auto"'
        )
    if strategy == "hot" and _own(upgrades):
        yield (
            f'[targets.upgrades{of}]: has no effect with strategy = "hot", which starts no server: write '
            '"auto", or remove it'
        )
    if strategy == "hot" and target.quality.always:
        yield (
            f'[targets.quality{of}] always: with strategy = "hot" every change would be refused, as no '
            'second server answers the prompts: write "auto", or remove it'
        )
    if strategy not in HOT_FIRST and "hot_changes_per_day" in _own(target.rollout):
        yield (
            f"[targets.rollout{of}] hot_changes_per_day: has no effect with strategy = {quote(strategy)}: no "
            "change is hot"
        )
    if target.cost.cards and target.cost.gpu_hour is None:
        yield (
            f"[targets.cost{of}] cards: has no effect without gpu_hour, the price that theirs are compared "
            "with: give it, or remove cards"
        )
    options = target.traffic.model_extra or {}
    if options.get("hold_s") == 0 and "hold_requests" in options:
        yield f"[targets.traffic{of}] hold_requests: has no effect with hold_s = 0: no request waits"


def _find_in_bound(knob: Knob, table: BoundTable) -> Iterator[str]:
    """Problems, with the key before each that is in one."""
    given = _own(table)
    if not given and tunable(knob):  # of another one it is said elsewhere
        yield ": is empty, and so limits nothing: give min, max, allowed or octaves"
    facts = KNOBS.get(knob)
    if facts is not None and facts.type not in _NUMBERS and (facts.tunable or table.allowed):
        for key in ("min", "max", "step", "octaves"):
            if key in given:
                yield f" {key}: has no effect, as {knob} is no number: list its values under allowed"
    for value in table.allowed:
        if why := misfit(knob, value):
            yield f" allowed: {quote(value)} is no value of it: {knob} {why}"
        elif isinstance(value, int | float) and not isinstance(value, bool) and _is_outside(value, table):
            yield f" allowed: {value:g} is not within min and max: no change ever takes it"


def _own(table: ConfigTable) -> Mapping[str, object]:
    """What the file says otherwise than the defaults: what is a default anyway is not said in vain."""
    return table.model_dump(exclude_defaults=True)


def _is_outside(value: float, table: BoundTable) -> bool:
    low = -float("inf") if table.min is None else table.min
    high = float("inf") if table.max is None else table.max
    return not low <= value <= high
