"""Rounds: every target begins a rollout at once, so that a kill meets many of them in the same phase."""

import asyncio
from collections.abc import Sequence
from random import Random

from bench.kubernetes_kills.kills import Killer
from bench.kubernetes_kills.rollouts import PATIENCE_S, Rollouts
from tests.support.rig import until

KINDS = {"good": 0.5, "aborted": 0.3, "slow": 0.2}
"""Rounds of a good green, of one that an operator aborts at a random moment, and of a slow green."""
ONLY_IN = {"rolling_back": ("aborted", "slow"), "promoting": ("good",), "handover": ("good",)}
"""The rounds that have a phase."""
_ABORTED_WITHIN_S = 30.0


async def play(targets: Sequence[Rollouts], killer: Killer, random: Random, stop: asyncio.Event) -> None:
    """Until `stop`; the last round ends."""
    while not stop.is_set() and (working := [one for one in targets if not one.stuck]):
        kind = _choose(killer.lacking, random)
        rollouts = asyncio.gather(*(one.rollout(slow=kind == "slow") for one in working))
        aborting = asyncio.create_task(_abort(working, random)) if kind == "aborted" else None
        await rollouts
        if aborting is not None:
            aborting.cancel()


def _choose(lacking: Sequence[str], random: Random) -> str:
    """Prefer rounds in which phases that lack kills come."""
    useful = [kind for phase in lacking for kind in ONLY_IN.get(phase, ())] or list(KINDS)
    [kind] = random.choices(useful, [KINDS[one] for one in useful])
    return kind


async def _abort(targets: Sequence[Rollouts], random: Random) -> None:
    """All at the same moment, once the first has begun."""

    async def begun() -> bool:
        return any(one.is_running for one in targets)

    await until(begun, bool, "a rollout", PATIENCE_S)
    await asyncio.sleep(random.uniform(0.0, _ABORTED_WITHIN_S))
    await asyncio.gather(*(one.abort() for one in targets))
