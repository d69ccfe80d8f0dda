"""Kill the daemon at random moments of the phases that lack kills, and start it again."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from bench.kubernetes_kills.site import Site
from bench.kubernetes_kills.states import States, phase_of
from flettner.agent.machine.recovering import RESUMES
from tests.support.rig import until

LASTS_S = {
    "launching": 2.5,
    "warming": 1.7,
    "canary": 20.0,
    "promoting": 0.25,
    "handover": 46.0,
    "rolling_back": 1.0,
}
"""About how long each phase lasts where the machine is idle: a kill comes at a random moment of that time."""
BEFORE = ("launching", "warming", "canary")
DOWN_S = 10.0  # at most, until the daemon starts again
_OTHER_POD = 1 / 10
"""Share of the kills after which a pod with another uid takes over, which waits 45 s for the Lease."""
_IN_RECOVERY = 1 / 8  # share of the kills soon after a start
_READY_S = 180.0
_LONG_S = 10.0  # a kill in a phase that lasts so long need not wait for the next target that enters it
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """`phases`: of each target in a rollout, with the rollout. `ready_s`: from the start to readiness."""

    at_s: float
    phases: dict[str, tuple[str, str]]
    down_s: float
    other_pod: bool
    ready_s: float | None


@dataclass(kw_only=True)
class Killer:
    site: Site
    states: States
    random: Random
    times: int  # for each of the phases
    phases: Sequence[str] = tuple(LASTS_S)
    wrong: list[str]
    made: list[Kill] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def lacking(self) -> list[str]:
        """Return the phases that lack kills, in ascending order of their kills."""
        return sorted(
            (phase for phase in self.phases if self.counts[phase] < self.times), key=self.counts.__getitem__
        )

    async def run(self, for_s: float) -> None:
        end_s = self._now_s() + for_s
        while self.lacking and self._now_s() < end_s:
            await self._moment()
            again = True
            while again:
                again = await self._kill()

    async def _moment(self) -> None:
        """Wait until a target enters a phase that lacks kills, then for a random part of that phase."""
        before = self.states.phases()
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._check_alive()
            now = self.states.phases()
            entered = {
                phase
                for target, phase in now.items()
                if before.get(target) != phase or LASTS_S.get(phase, 0.0) > _LONG_S
            }
            before = now
            if chosen := next((phase for phase in self.lacking if phase in entered), None):
                await asyncio.sleep(self.random.uniform(0.0, LASTS_S[chosen]))
                if self._may_kill():
                    return

    def _may_kill(self) -> bool:
        """Return False while one more restart would roll a rollout back, so that some are promoted."""
        running = [state["rollout"] for state in self.states.by_target.values() if phase_of(state) in BEFORE]
        return all(rollout["restarts"] < RESUMES for rollout in running)

    async def _kill(self) -> bool:
        """Return whether the next kill comes at once, while the daemon recovers."""
        at_s = self._now_s()
        await self.site.kill_group()
        self.states.read()
        phases = {
            target: (phase, self.states.by_target[target]["rollout"]["id"])
            for target, phase in self.states.phases().items()
            if phase in LASTS_S or phase == "replacing"
        }
        self.counts.update(phase for phase, _ in phases.values())
        down_s = self.random.uniform(0.0, DOWN_S)
        await asyncio.sleep(down_s)
        other_pod = self.random.random() < _OTHER_POD
        if other_pod:
            self.site.pod = f"pod-{len(self.made)}"
        in_recovery = self.random.random() < _IN_RECOVERY
        ready_s = await self._start(in_recovery=in_recovery)
        self.made.append(Kill(at_s=at_s, phases=phases, down_s=down_s, other_pod=other_pod, ready_s=ready_s))
        print(
            f"{len(self.made):3} {dict(self.counts)} lacking {self.lacking}; down {down_s:.1f} s, "
            f"ready after {ready_s or 0:.1f} s{', another pod' * other_pod}",
            flush=True,
        )
        return in_recovery

    async def _start(self, *, in_recovery: bool) -> float | None:
        began_s = self._now_s()
        await self.site.start()
        if in_recovery:
            await asyncio.sleep(self.random.uniform(0.5, 6.0))
            return None
        try:
            await until(self.site.ready, bool, "readiness", _READY_S)
        except AssertionError as error:
            self.wrong.append(f"kill {len(self.made)}: {error}; {self.site.log()[-600:]}")
        return self._now_s() - began_s

    async def _check_alive(self) -> None:
        """Restart a daemon that ended by itself, and record it as an error."""
        assert self.site.daemon is not None
        if self.site.daemon.returncode is not None:
            self.wrong.append(f"the daemon ended by itself: {self.site.log()[-600:]}")
            await self._start(in_recovery=False)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
