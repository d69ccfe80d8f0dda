"""Records the kinds of load of a target, and asks the model once a day for a setting for each."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from flettner.agent.domain.errors import WorkerError
from flettner.agent.domain.model import Server
from flettner.agent.domain.regimes import RegimeAdvice
from flettner.agent.domain.state import State
from flettner.agent.machine.hot_knobs import HOT_FIRST
from flettner.agent.machine.transitions import IDLE, Rules
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.load_history import LoadHistory, decode, encode
from flettner.agent.prediction.regime_search import RegimeRequest, search_regimes
from flettner.agent.runtime.companion import Observable
from flettner.agent.runtime.model_search import ModelSearch
from flettner.performance_model.load_mixes import TwoMixes, find_mixes
from flettner.primitives.files import replace_file
from flettner.vllm_facts.values import Knob, Setting

LOOK_EVERY_S = 60.0
STARTED: Mapping[Knob, tuple[float, float]] = {
    "max_num_seqs": (1.0, 1024.0),
    "max_num_batched_tokens": (64.0, 16_384.0),
}
"""What is searched where no server changes its limits while it runs, inside the bounds."""
EVERY = timedelta(days=1)
AGAIN = timedelta(hours=1)  # after flags changed, or without an answer
log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class RegimeSearch:
    """`advice`: the latest; None where one setting does, or too little is known. `file`: keeps the load."""

    search: ModelSearch
    file: Path | None = None
    is_on: bool = False  # whether a policy uses it, and running servers may take changes
    may_start: bool = False  # whether new servers may take them, where running ones do not
    advice: RegimeAdvice | None = None
    history: LoadHistory = field(default_factory=LoadHistory)
    _asked_at: datetime | None = None
    _asked: Setting = field(default_factory=dict)

    def use(self, rules: Rules) -> None:
        """Search within these rules from now on."""
        uses = any(getattr(policy, "uses_regimes", False) for _, policy in rules.policies)
        self.is_on, self.advice, self._asked_at = uses and rules.strategy in HOT_FIRST, None, None
        self.may_start = rules.strategy == "auto"

    async def run(self, target: Observable) -> None:
        self._read()
        while True:
            if self.is_on:
                await self._record(self.search.believed(target.state))
                await self.update(target.state)
            await asyncio.sleep(LOOK_EVERY_S)

    async def update(self, state: State) -> None:
        """Ask the model if it is time, or if the flags in force changed."""
        learned, blue, at = self.search.believed(state), state.fleet.blue, self.search.now()
        if learned is None or learned.law is None or blue is None:
            self.advice = None
            return
        if state.phase not in IDLE or state.switching is not None or not self._is_due(at, blue.setting):
            return
        mixes = find_mixes(self.history.rows)
        if mixes is None:
            self.advice = None
            return
        request = self._request(mixes, learned, state, at)
        self._asked_at, self._asked = at, blue.setting
        if request is None:
            self.advice = None
            return
        try:
            self.advice = await self.search.worker.call(search_regimes, request)
        except WorkerError as error:
            log.warning("regimes.failed", target=state.target, why=str(error))

    def _request(
        self, mixes: TwoMixes, learned: LearnedModel, state: State, at: datetime
    ) -> RegimeRequest | None:
        """None where a kind has no recorded quarter of an hour, or no limit changes at run time."""
        below, above = (self.history.sample_of(mixes, above=above) for above in (False, True))
        hot = common_limits(state.fleet.running)
        if below is None or above is None or not (hot or self.may_start):
            return None
        setting = state.fleet.setting
        return RegimeRequest(
            learned=replace(learned, config=replace(learned.config, setting=setting)),
            slo=self.search.slo,
            at=at,
            mixes=mixes,
            below=below.trace(),
            above=above.trace(),
            hot=hot or STARTED,
            cold=not hot,
            bounds=self.search.bounds,
            outcomes=state.outcomes,
        )

    def _is_due(self, at: datetime, setting: Setting) -> bool:
        if self._asked_at is None:
            return True
        pause = EVERY if dict(setting) == dict(self._asked) else AGAIN
        return abs(at - self._asked_at) >= pause  # also after a clock that was ahead is set back

    async def _record(self, learned: LearnedModel | None) -> None:
        """Add the last quarter of an hour, once it is a new one."""
        if learned is None:
            return
        history = self.history.add(int(learned.fitted_at.timestamp()), learned.trace)
        if history is self.history:
            return
        self.history = history
        if self.file is not None:
            try:
                await asyncio.to_thread(replace_file, self.file, encode(history))  # up to 0.5 MB
            except OSError as error:  # only a restart would read it
                log.warning("loads.unwritable", file=str(self.file), why=error.strerror)

    def _read(self) -> None:
        if self.file is None:
            return
        try:
            self.history = decode(self.file.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("loads.unreadable", file=str(self.file), why=str(error)[:200])


def common_limits(servers: tuple[Server, ...]) -> dict[Knob, tuple[float, float]]:
    """The range of each limit that all of these servers change while they run."""
    ranges = [server.hot.limits for server in servers if server.hot is not None]
    if not ranges or len(ranges) < len(servers):
        return {}
    return {
        knob: (max(limits[knob][0] for limits in ranges), min(limits[knob][1] for limits in ranges))
        for knob in ranges[0]
        if all(knob in limits for limits in ranges)
    }
