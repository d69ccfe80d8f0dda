"""The rollouts of one target under load; each must end defined."""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from bench.kubernetes_kills.site import BAD_CAP, CAPS, Site
from bench.kubernetes_kills.states import State, States, is_at_rest
from tests.support.rig import until

PATIENCE_S = 1800.0
"""For one rollout, in which the daemon may be killed a dozen times."""
_LOOK_S = 0.2


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
        """One change from its proposal to its end. A target that does not get on is left."""
        try:
            await self._rollout(BAD_CAP if slow else next(cap for cap in CAPS if cap != self.cap))
        except (AssertionError, LookupError, OSError) as error:
            self.stuck = True
            self.wrong.append(f"{self.name}: {str(error)[:500] or error!r}; note: {self.state.get('note')!r}")

    async def abort(self) -> None:
        """As an operator does; refused once green is promoted."""
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
        _, found = await self.site.ask("GET", f"/v1/suggestions?target={self.name}&limit=1")
        newest = (found.get("suggestions") or [{}])[0]
        if newest.get("status") == "open":
            body: object = {"digest": newest["digest"]}
            await self.site.ask("POST", f"/v1/suggestions/{newest['id']}/approve", body)
        elif found and newest.get("status") != "checking" and is_at_rest(self.state):
            body = {"to": {"max_num_seqs": cap}, "reason": "a change"}
            await self.site.ask("POST", f"/v1/targets/{self.name}/suggestions", body)

    async def _check(self, rollout: str, wanted: int) -> None:
        """The outcome, the weights and the operator's Deployment agree."""
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
        await until(weights, lambda found: found in (whole, {}), f"{whole} after {rollout}", PATIENCE_S)
        flags = await self.site.flags(self.name)
        if f"{self.cap}" not in flags:
            self.wrong.append(f"{rollout} {outcome}: the Deployment has {flags}, not {self.cap}")

    async def _until(self, holds: object, what: str) -> None:
        async def look() -> bool:
            return bool(holds())  # type: ignore[operator]

        await until(look, bool, what, PATIENCE_S)
