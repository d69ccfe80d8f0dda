"""Which strategy a change takes: whether there is capacity for green, and what serves meanwhile. Pure."""

from dataclasses import dataclass
from typing import Literal

from flettner.agent.domain.model import Strategy

_FEWEST_TO_REPLACE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCapacity:
    """Whether the host has capacity for one more server like the running ones. `free` None: unknown."""

    free: bool | None
    why: str  # a clause with the numbers in it: "GPU 0 has 62 of 80 GiB free"


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyChoice:
    strategy: Strategy | None  # None: none fits, and `why` says how to change that
    why: str


def choose_strategy(
    wanted: Strategy | Literal["auto"], servers: int, capacity: HostCapacity
) -> StrategyChoice:
    """`servers`: how many serve now. Unknown capacity counts as none, unless the operator wants surge."""
    if servers < 1:
        return StrategyChoice(strategy=None, why="no server runs that could be changed: start one first")
    match wanted:
        case "surge":
            return _surge(capacity)
        case "replace":
            return _replace(servers)
        case "swap":
            return _swap(servers, capacity)
        case "hot" | "save":
            return StrategyChoice(
                strategy=None, why=f'strategy = "{wanted}" starts no server: no capacity is asked for'
            )
        case "auto":
            return _auto(servers, capacity)


def _auto(servers: int, capacity: HostCapacity) -> StrategyChoice:
    if capacity.free:
        return StrategyChoice(strategy="surge", why=f"there is capacity for one more server: {capacity.why}")
    lacks = _missing_capacity(capacity)
    if servers >= _FEWEST_TO_REPLACE:
        why = f"{lacks}; {servers - 1} of {servers} servers keep serving while one at a time is replaced"
        return StrategyChoice(strategy="replace", why=why)
    why = f"{lacks}, and it is the only server: nothing serves while it is replaced"
    return StrategyChoice(strategy="swap", why=why)


def _surge(capacity: HostCapacity) -> StrategyChoice:
    if capacity.free is False:
        what = 'free some, or write strategy = "auto"'
        return StrategyChoice(
            strategy=None,
            why=f'strategy = "surge", but there is no capacity for one more server: {capacity.why}; {what}',
        )
    if capacity.free is None:
        why = f"requested, though it is unknown whether there is capacity: {capacity.why}"
        return StrategyChoice(strategy="surge", why=why)
    return StrategyChoice(strategy="surge", why=f"requested, and there is capacity: {capacity.why}")


def _replace(servers: int) -> StrategyChoice:
    if servers < _FEWEST_TO_REPLACE:
        why = 'strategy = "replace" needs two servers, and there is one: nothing would serve; write "swap"'
        return StrategyChoice(strategy=None, why=why)
    why = f"requested: {servers - 1} of {servers} servers keep serving while one at a time is replaced"
    return StrategyChoice(strategy="replace", why=why)


def _swap(servers: int, capacity: HostCapacity) -> StrategyChoice:
    if servers >= _FEWEST_TO_REPLACE:
        why = f'strategy = "swap" is for one server, not {servers}; write "replace": the rest keep serving'
        return StrategyChoice(strategy=None, why=why)
    why = "requested: nothing serves while the only server is replaced"
    return StrategyChoice(
        strategy="swap",
        why=f"{why} (there is capacity for one more server: {capacity.why})" if capacity.free else why,
    )


def _missing_capacity(capacity: HostCapacity) -> str:
    numbers = (
        "there is no capacity for one more server"
        if capacity.free is False
        else "it is unknown whether there is capacity for one more server"
    )
    return f"{numbers}: {capacity.why}"
