"""The rollouts of targets under load, in rounds; each must end defined."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from bench.kubernetes_kills.kills import Killer
from bench.kubernetes_kills.site import BAD_CAP, CAPS, Site
from bench.kubernetes_kills.states import State, States, is_at_rest
from tests.support.rig import until

PATIENCE_S = 1800.0
"""For one rollout, in which the daemon may be killed a dozen times."""
_LOOK_S = 0.2
KINDS = {"good": 0.5, "aborted": 0.3, "slow": 0.2}
"""The shares of rounds with a good green, with a green that an operator aborts, and with a slow green."""
ONLY_IN = {"rolling_back": ("aborted", "slow"), "promoting": ("good",), "handover": ("good",)}
"""The rounds that have a phase."""
_ABORTED_WITHIN_S = 30.0


@dataclass(kw_only=True)
class Rollouts:
    """`wrong`: what must not be. `settings`: the cap that must be in force."""

    site: Site
    states: States
    name: str
    wrong: list[str]
    cap: int = CAPS[0]
    stuck: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def state(self) -> State:
        return self.states.by_target.get(self.name, {})

    @property
    def is_running(self) -> bool:
        return (self.state.get("rollout") or {}).get("outcome") == "running"

    async def rollout(self, *, slow: bool) -> None:
        """Play one change from its proposal to its end. A target that makes no progress is left alone."""
        try:
            await self._rollout(BAD_CAP if slow else next(cap for cap in CAPS if cap != self.cap))
        except (AssertionError, LookupError, OSError) as error:
            self.stuck = True
            self.wrong.append(f"{self.name}: {str(error)[:500] or error!r}; note: {self.state.get('note')!r}")

    async def abort(self) -> None:
        """Abort the rollout as an operator does; it is refused once green is promoted."""
        if self.is_running:
            rollout = self.state["rollout"]["id"]
            await self.site.ask("POST", f"/v1/rollouts/{rollout}/abort", {"reason": "enough"})

    async def _rollout(self, wanted: int) -> None:
        await self._until(lambda: bool(self.state) and is_at_rest(self.state), "rest")
        before = (self.state.get("rollout") or {}).get("id")
        async with asyncio.timeout(PATIENCE_S):
            while (rollout := self.state.get("rollout") or {}).get("id") == before:
                await self._ask_for(wanted)
                await asyncio.sleep(_LOOK_S)
        await self._until(lambda: is_at_rest(self.state), f"the end of {rollout['id']}")
        await self._check(rollout["id"], wanted)

    async def _ask_for(self, cap: int) -> None:
        """Propose the change, or approve it once it is checked; either may get no answer."""
        _, document = await self.site.ask("GET", f"/v1/suggestions?target={self.name}&limit=1")
        newest = (document.get("suggestions") or [{}])[0]
        if newest.get("status") == "open":
            body: object = {"digest": newest["digest"]}
            await self.site.ask("POST", f"/v1/suggestions/{newest['id']}/approve", body)
        elif document and newest.get("status") != "checking" and is_at_rest(self.state):
            body = {"to": {"max_num_seqs": cap}, "reason": "a change"}
            await self.site.ask("POST", f"/v1/targets/{self.name}/suggestions", body)

    async def _check(self, rollout: str, wanted: int) -> None:
        """Check that the outcome, the weights and the operator's Deployment agree."""
        outcome = self.states.outcomes[rollout]
        self.outcomes[outcome] += 1
        if outcome == "promoted":
            self.cap = wanted
        green_or_blue = self.state["blue"]
        if green_or_blue["setting"]["max_num_seqs"] != self.cap:
            self.wrong.append(f"{rollout} {outcome}: {green_or_blue['setting']} is in force")

        async def weights() -> dict[str, int]:
            with suppress(OSError):
                return await self.site.weights_of(self.name)
            return {}

        whole = {str(green_or_blue["name"]): 100}
        await until(weights, lambda split: split in (whole, {}), f"{whole} after {rollout}", PATIENCE_S)
        flags = await self.site.flags(self.name)
        if f"{self.cap}" not in flags:
            self.wrong.append(f"{rollout} {outcome}: the Deployment has {flags}, not {self.cap}")

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        async def look() -> bool:
            return holds()

        await until(look, bool, what, PATIENCE_S)


async def play_rounds(
    targets: Sequence[Rollouts], killer: Killer, random: Random, stop: asyncio.Event
) -> None:
    """Begin a rollout of every target at once, so that a kill meets many of them in the same phase.

    The rounds go on until `stop` is set; the last round ends.
    """
    while not stop.is_set() and (working := [target for target in targets if not target.stuck]):
        kind = _choose(killer.lacking, random)
        rollouts = asyncio.gather(*(target.rollout(slow=kind == "slow") for target in working))
        aborting = asyncio.create_task(_abort(working, random)) if kind == "aborted" else None
        await rollouts
        if aborting is not None:
            aborting.cancel()


def _choose(lacking: Sequence[str], random: Random) -> str:
    """Prefer rounds in which phases that lack kills come."""
    useful = [kind for phase in lacking for kind in ONLY_IN.get(phase, ())] or list(KINDS)
    [kind] = random.choices(useful, [KINDS[name] for name in useful])
    return kind


async def _abort(targets: Sequence[Rollouts], random: Random) -> None:
    """Abort all rollouts at the same moment, once the first has begun."""

    async def begun() -> bool:
        return any(target.is_running for target in targets)

    await until(begun, bool, "a rollout", PATIENCE_S)
    await asyncio.sleep(random.uniform(0.0, _ABORTED_WITHIN_S))
    await asyncio.gather(*(target.abort() for target in targets))
