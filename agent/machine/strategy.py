"""Which strategy a change takes: where green finds room, and what serves meanwhile. Pure."""

from dataclasses import dataclass
from typing import Literal

from agent.domain.model import Strategy

_FEWEST_TO_REPLACE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Whether one more server like the others has room beside them. None: nobody knows."""

    free: bool | None
    why: str  # a clause with the numbers in it: "GPU 0 has 62 of 80 GiB free"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    strategy: Strategy | None  # None: none fits, `why` says what to do
    why: str


def choose_strategy(wanted: Strategy | Literal["auto"], servers: int, room: Capacity) -> Choice:
    """`servers` serve now. Room that nobody knows of is no room, unless the operator asks for it."""
    if servers < 1:
        return Choice(strategy=None, why="no server runs that could be changed: start one first")
    match wanted:
        case "surge":
            return _surge(room)
        case "replace":
            return _replace(servers)
        case "swap":
            return _swap(servers, room)
        case "auto":
            return _auto(servers, room)


def _auto(servers: int, room: Capacity) -> Choice:
    if room.free:
        return Choice(strategy="surge", why=f"there is room for a server beside the others: {room.why}")
    lacks = _missing_capacity(room)
    if servers >= _FEWEST_TO_REPLACE:
        why = f"{lacks}; {servers - 1} of {servers} servers go on while one at a time gives its place"
        return Choice(strategy="replace", why=why)
    why = f"{lacks}, and it is the only server: nothing serves while it gives its place"
    return Choice(strategy="swap", why=why)


def _surge(room: Capacity) -> Choice:
    if room.free is False:
        what = 'make room, or write strategy = "auto"'
        return Choice(strategy=None, why=f'strategy = "surge", but there is no room: {room.why}; {what}')
    if room.free is None:
        why = f"asked for, though nobody knows whether there is room: {room.why}"
        return Choice(strategy="surge", why=why)
    return Choice(strategy="surge", why=f"asked for, and there is room: {room.why}")


def _replace(servers: int) -> Choice:
    if servers < _FEWEST_TO_REPLACE:
        why = 'strategy = "replace" needs two servers, and there is one: nothing would serve; write "swap"'
        return Choice(strategy=None, why=why)
    why = f"asked for: {servers - 1} of {servers} servers go on while one at a time gives its place"
    return Choice(strategy="replace", why=why)


def _swap(servers: int, room: Capacity) -> Choice:
    if servers >= _FEWEST_TO_REPLACE:
        why = f'strategy = "swap" is for one server, and there are {servers}; write "replace": some go on'
        return Choice(strategy=None, why=why)
    why = "asked for: nothing serves while the only server gives its place"
    return Choice(strategy="swap", why=f"{why} (there is room beside it: {room.why})" if room.free else why)


def _missing_capacity(room: Capacity) -> str:
    known = (
        "there is no room beside the others" if room.free is False else "nobody knows whether there is room"
    )
    return f"{known}: {room.why}"
