"""Seeded bugs that the simulation must detect. CAUGHT holds the history that detects each."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from flettner.agent.api.routes import suggestions
from flettner.agent.api.tokens import Holder, Tokens
from flettner.agent.audit import entries
from flettner.agent.domain import events as e
from flettner.agent.domain.effects import Drain, KeepAlive, Retire, Route
from flettner.agent.domain.events import Drained
from flettner.agent.domain.regimes import RegimePlan
from flettner.agent.domain.state import Phase, State
from flettner.agent.machine import adapters, failover, promoting, recovering, restoring, rolling_back, saving
from flettner.agent.machine.starting import start_rollout
from flettner.agent.machine.step import HANDLERS
from flettner.agent.machine.transitions import Rules, Transition, enter_phase, request_effect, without_effects
from flettner.agent.runtime import loop as loop_module
from flettner.agent.runtime.effect_runner import EffectRunner
from flettner.agent.runtime.process_clock import ProcessClock
from tests.simulation.adapters import SimEngine
from tests.simulation.api_client import shared_api
from tests.simulation.scenario import Act, Scenario
from tests.simulation.traffic import SimTraffic

Put = Callable[[Any, str, object], None]


@contextmanager
def mutated(mutant: "str | Callable[[Put], None]") -> Iterator[None]:
    """Apply the bug, or the one of this name, to the product, and revert it afterwards."""
    undo: list[tuple[Any, str, object]] = []

    def put(owner: Any, name: str, new: object) -> None:  # noqa: ANN401 - a module, a class or a table
        undo.append((owner, name, owner[name] if isinstance(owner, dict) else getattr(owner, name)))
        _set(owner, name, new)

    try:
        (MUTANTS[mutant] if isinstance(mutant, str) else mutant)(put)
        yield
    finally:
        for owner, name, old in reversed(undo):
            _set(owner, name, old)


def _set(owner: Any, name: Any, new: object) -> None:  # noqa: ANN401
    if isinstance(owner, dict):
        owner[name] = new
    else:
        setattr(owner, name, new)


def blue_removed_too_early(put: Put) -> None:
    """Retire the old server at the verdict, before the new ones have its traffic."""

    def promote(state: State, at: Any, why: str) -> Transition:  # noqa: ANN401
        state = enter_phase(state, Phase.PROMOTING, at, why)
        old = promoting.next_to_retire(state)
        return without_effects(state) if old is None else request_effect(state, Retire(number=0, server=old))

    put_everywhere(put, "promote", promoting.promote, promote)


def no_orphan_sweep(put: Put) -> None:
    put(recovering, "retire_orphans", lambda moved, _: moved)


def weight_as_delta(put: Put) -> None:
    """Send the proxy a weight difference instead of a weight: a repeated call doubles it."""
    plain = SimTraffic._put

    def put_route(self: SimTraffic, route: Route) -> None:
        split = self.host.world.split
        before = split.weights if split is not None and split.number == route.number else {}
        weights = {name: weight + before.get(name, 0) for name, weight in route.weights.items()}
        plain(self, replace(route, weights=weights))

    put(SimTraffic, "_put", put_route)


def journal_after_effect(put: Put) -> None:
    plain = loop_module.TargetLoop._step

    def late(self: Any, event: Any, done: Any) -> Any:  # noqa: ANN401
        entries: list[Any] = []
        write, self_write = self.journal.append, entries.append
        book = self.journal
        self.journal = _Later(book, self_write)
        try:
            effects = plain(self, event, done)
        finally:
            self.journal = book
        for entry in entries:
            book.host.world.loop.call_later(1.0, _written, write, entry)
        return effects

    put(loop_module.TargetLoop, "_step", late)


class _Later:
    def __init__(self, book: Any, keep: Callable[[Any], None]) -> None:  # noqa: ANN401
        self._book, self.append = book, keep

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._book, name)


def _written(write: Callable[[Any], None], entry: Any) -> None:  # noqa: ANN401
    try:
        write(entry)
    except BaseException:  # noqa: BLE001 - the process died meanwhile
        return


def lease_not_renewed(put: Put) -> None:
    plain = EffectRunner._act

    async def act(self: EffectRunner, effect: Any) -> Any:  # noqa: ANN401
        return None if isinstance(effect, KeepAlive) else await plain(self, effect)

    put(EffectRunner, "_act", act)


def lease_without_end(put: Put) -> None:
    """Green's share does not end with the daemon."""
    plain = SimTraffic._put

    def put_route(self: SimTraffic, route: Route) -> None:
        plain(self, replace(route, leased=None))

    put(SimTraffic, "_put", put_route)


def epoch_not_checked(put: Put) -> None:
    async def nothing(_: EffectRunner) -> None:
        return

    put(SimEngine, "_fence", lambda _: None)
    put(SimTraffic, "_fence", lambda _: None)
    put(EffectRunner, "_check_epoch", nothing)


def approval_not_checked(put: Put) -> None:
    def approve(given: Rules, state: State, event: e.Approved) -> Transition:
        return start_rollout(given, state, state.suggestions.open[0], event.at, event.actor)

    put(suggestions, "hmac", SimpleNamespace(compare_digest=lambda *_: True))
    put(HANDLERS, (Phase.PROPOSED, e.Approved), approve)  # type: ignore[arg-type]


def role_not_checked(put: Put) -> None:
    put(Holder, "allows", lambda *_: True)


def removed_token_still_valid(put: Put) -> None:
    shared_api()  # has read the tokens once: the bug is about their removal
    put(Tokens, "reload", lambda _: None)


def recovery_forgets_green(put: Put) -> None:
    plain = recovering.merge_found_servers

    def merge_found_servers(state: State, event: e.AgentStarted, servers: Any) -> State:  # noqa: ANN401
        seen = plain(state, event, servers)
        if len(seen.greens) != 1:
            return seen
        return replace(seen, rollout=replace(seen.canary, greens=()), phase=Phase.OBSERVING)

    put(recovering, "merge_found_servers", merge_found_servers)


def drain_skipped(put: Put) -> None:
    plain = EffectRunner._act

    async def act(self: EffectRunner, effect: Any) -> Any:  # noqa: ANN401
        if isinstance(effect, Drain):
            return Drained(at=self.now(), number=effect.number, open=0)
        return await plain(self, effect)

    put(EffectRunner, "_act", act)


def retired_before_routed_away(put: Put) -> None:
    plain = rolling_back.roll_back_next

    def roll_back_next(state: State) -> Transition:
        green = state.canary.newest
        if green is not None and rolling_back.is_routed(state, green):
            return request_effect(state, Retire(number=0, server=green))
        return plain(state)

    put(rolling_back, "roll_back_next", roll_back_next)


def no_failover(put: Put) -> None:
    put(failover, "leave_failing_servers", lambda _, moved, __: moved)


def adapters_forgotten(put: Put) -> None:
    async def load_adapters(_: EffectRunner, server: Any, __: Any) -> Any:  # noqa: ANN401
        return server, ()

    put(EffectRunner, "_load_adapters", load_adapters)
    put(adapters, "missing_adapters", lambda *_: ())


def times_by_the_wall_clock(put: Put) -> None:
    put(ProcessClock, "now", lambda clock: clock._wall())


def any_number_of_switches(put: Put) -> None:
    put(RegimePlan, "most_switches", property(lambda _: 99))


def switches_at_once(put: Put) -> None:
    """The first lengths of the other kind decide."""
    put(RegimePlan, "lasts_s", property(lambda _: 0))


def switch_not_named(put: Put) -> None:
    put(entries, "is_switch", lambda _: False)


def never_put_back(put: Put) -> None:
    put_everywhere(put, "return_servers", saving.return_servers, lambda *_: None)


def put_back_one_by_one(put: Put) -> None:
    put(saving, "_start_all", lambda _, moved: moved)


def held_up_by_a_stuck_start(put: Put) -> None:
    put(restoring, "joins", lambda *_: False)


def spares_more_than_approved(put: Put) -> None:
    plain = saving.choose_spared
    put(saving, "choose_spared", lambda state, servers: plain(state, servers - 1))


def put_everywhere(put: Put, name: str, old: object, new: object) -> None:
    """Replace `old` in every module of the machine that imports it."""
    for module in [
        imported for place, imported in sys.modules.items() if place.startswith("flettner.agent.machine")
    ]:
        if getattr(module, name, None) is old:
            put(module, name, new)


def threads_of_the_proxy_ignored(put: Put) -> None:
    """Stop a server although a thread of the proxy may still send it requests by the split before."""

    async def is_settled(self: SimTraffic) -> bool:
        del self
        return True

    put(SimTraffic, "is_settled", is_settled)


MUTANTS: dict[str, Callable[[Put], None]] = {
    "threads of the proxy ignored": threads_of_the_proxy_ignored,
    "blue removed too early": blue_removed_too_early,
    "no orphan sweep": no_orphan_sweep,
    "weight written as a delta": weight_as_delta,
    "journal after effect": journal_after_effect,
    "lease not renewed": lease_not_renewed,
    "lease without end": lease_without_end,
    "epoch not checked": epoch_not_checked,
    "approval not checked": approval_not_checked,
    "role not checked": role_not_checked,
    "removed token still valid": removed_token_still_valid,
    "recovery forgets green": recovery_forgets_green,
    "drain skipped": drain_skipped,
    "retired before routed away": retired_before_routed_away,
    "no failover": no_failover,
    "adapters forgotten": adapters_forgotten,
    "times by the wall clock": times_by_the_wall_clock,
    "any number of switches": any_number_of_switches,
    "switches at once": switches_at_once,
    "switch not named": switch_not_named,
    "never put back": never_put_back,
    "put back one by one": put_back_one_by_one,
    "held up by a stuck start": held_up_by_a_stuck_start,
    "spares more than approved": spares_more_than_approved,
}

PLAIN = Scenario(seed=0)
FLEET = Scenario(seed=0, servers=2)
SWITCHING = Scenario(seed=1, strategy="hot", switches=True, acts=(Act(what="lengths change", at_s=20.0),))
SAVING = Scenario(
    seed=1, servers=4, strategy="save", acts=(Act(what="load returns", at_s=40.0, lasts_s=35.0),)
)

CAUGHT: dict[str, tuple[Scenario, str]] = {
    "threads of the proxy ignored": (
        Scenario(seed=32, servers=3, strategy="replace", late_threads=True),
        "2: ",
    ),
    "blue removed too early": (FLEET, "1: "),
    "no orphan sweep": (replace(PLAIN, acts=(Act(what="stray server by hand", at_s=10.0),)), "3: "),
    "weight written as a delta": (PLAIN, "weights: "),
    "journal after effect": (PLAIN, "journal: "),
    "lease not renewed": (PLAIN, "4: "),
    "lease without end": (
        replace(PLAIN, acts=(Act(what="daemon dead for long", on="phase canary"),)),
        "4: ",
    ),
    "epoch not checked": (replace(PLAIN, acts=(Act(what="daemon paused and replaced", at_s=12.0),)), "5: "),
    "approval not checked": (
        replace(PLAIN, acts=(Act(what="operator approves what was not shown", on="phase proposed"),)),
        "6: ",
    ),
    "role not checked": (
        replace(PLAIN, acts=(Act(what="operator without the role", on="phase proposed"),)),
        "6: ",
    ),
    "removed token still valid": (
        Scenario(seed=5, acts=(Act(what="token removed", at_s=2.0, lasts_s=20.0),)),
        "6: ",
    ),
    "recovery forgets green": (replace(PLAIN, acts=(Act(what="daemon killed", at_s=14.0),)), "3: "),
    "drain skipped": (Scenario(seed=1, servers=2, strategy="replace"), "2: "),
    "retired before routed away": (
        replace(PLAIN, acts=(Act(what="operator aborts", on="phase canary"),)),
        "1: ",
    ),
    "no failover": (
        replace(
            PLAIN,
            acts=(
                Act(what="old server hangs", on="phase canary"),
                Act(what="operator aborts", at_s=40.0),
            ),
        ),
        "1: traffic moves",
    ),
    "adapters forgotten": (PLAIN, "3: "),
    "times by the wall clock": (replace(PLAIN, acts=(Act(what="clock back", on="phase canary"),)), "clock: "),
    "any number of switches": (
        replace(
            SWITCHING,
            acts=(
                *(Act(what="lengths change", at_s=at_s) for at_s in (9.0, 31.0, 42.0)),
                Act(what="daemon killed", at_s=54.0),
            ),
        ),
        "switch: ",
    ),
    "switches at once": (SWITCHING, "switch: "),
    "switch not named": (SWITCHING, "6: "),
    "never put back": (SAVING, "saving: "),
    "put back one by one": (SAVING, "saving: "),
    "held up by a stuck start": (
        replace(
            SAVING,
            seed=1,
            servers=3,
            acts=(Act(what="load returns", at_s=30.0, lasts_s=40.0), Act(what="stuck", on="launch")),
        ),
        "saving: ",
    ),
    "spares more than approved": (SAVING, "saving: "),
}
"""The smallest history that detects each bug, and the violated invariant."""
