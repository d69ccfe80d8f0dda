"""Learns one target's model while the daemon runs: records its load, and has the worker fit the law."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

import structlog

from agent.domain.errors import ActError, WorkerError
from agent.domain.ports import Engine, Now
from agent.domain.prediction_check import LawDrop
from agent.domain.reading import EngineSample, RequestSample, Sample, count_replicas
from agent.machine.transitions import describe_deployment
from agent.prediction.learned import LearnedModel, describe_drop, without_dropped
from agent.prediction.lesson import LOG_FLAG, FittedLaw, Lesson, learn
from agent.prediction.recorder import Recorder, Role
from agent.prediction.step_rows import kv_tokens_of, read_steps
from agent.prediction.worker import Worker
from agent.runtime.companion import Observable
from performance_model.acceptance import Acceptance
from performance_model.engine_settings import SCHEDULING
from vllm_facts.deployment import Deployment
from vllm_facts.sizing.effective_flags import effective_batched_tokens
from vllm_facts.values import Setting

LEARN_EVERY_S = 60.0
READ_EVERY_S = 15.0  # an iteration log; of a read, step_rows keeps a sample
LAWS = 4  # fitted ones that are kept: one from before the last window is among them
log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Learner:
    """`model`: the latest; None before the first lesson."""

    worker: Worker
    engine: Engine
    now: Now
    model: LearnedModel | None = None
    _recorder: Recorder = field(default_factory=Recorder)
    _case: Deployment | None = None  # in force
    _roles: dict[str, Role] = field(default_factory=dict)  # by server
    _laws: deque[FittedLaw] = field(default_factory=lambda: deque(maxlen=LAWS))
    _acceptance: Acceptance = field(default_factory=Acceptance)
    _drop: LawDrop | None = None  # the latest
    _last_step: int = -1
    _failed: str = ""  # why the worker gave no result, as last logged

    def add(self, sample: Sample) -> None:
        if isinstance(sample, RequestSample):
            self._recorder.add_requests(sample)
        elif isinstance(sample, EngineSample) and (role := self._roles.get(sample.server)) is not None:
            self._recorder.add_scrape(sample, role)

    async def run(self, target: Observable) -> None:
        """Run until cancelled."""
        clock = asyncio.get_running_loop().time
        learn_at_s = clock() + LEARN_EVERY_S
        while True:
            self.observe(target)
            await asyncio.sleep(READ_EVERY_S)
            await self.read_log(target)
            if clock() >= learn_at_s - READ_EVERY_S / 2:
                learn_at_s = clock() + LEARN_EVERY_S
                await self.learn(target)

    def observe(self, target: Observable) -> None:
        """Note what runs: samples are recorded by it. A law that was dropped is forgotten, with its steps."""
        drop = target.state.law_drop
        if drop != self._drop:
            self._drop = drop
            self._forget_law()
            if self.model is not None:
                self._set_model(without_dropped(self.model, drop))
        first = next(iter(target.state.standing), None)
        if first is None:
            return
        case = describe_deployment(first.setting, target.reading)
        if self._case is not None and _law_key(case) != _law_key(self._case):
            self._forget_law()
            self._last_step = -1  # another log
        self._case = case
        self._roles = {
            one.name: _role(describe_deployment(one.setting, target.reading), case) for one in target.state.up
        }

    async def read_log(self, target: Observable) -> None:
        """Sample the iteration log of one server: equal servers take equally long for equal steps."""
        server = next(iter(target.state.standing), None)
        kv_tokens = kv_tokens_of(target.reading.facts) if target.reading else None
        if server is None or kv_tokens is None or server.setting.get(LOG_FLAG) is not True:
            return
        try:
            lines = await self.engine.step_log(server)
            steps = await self.worker.call(read_steps, lines, self._last_step, kv_tokens)
        except (ActError, WorkerError) as error:
            self._report(f"iteration log: {error}")
            return
        self._last_step = steps.last
        self._recorder.add_steps(steps)

    async def learn(self, target: Observable) -> None:
        """One lesson. Without servers the model stays."""
        self.observe(target)
        server, reading, case = next(iter(target.state.standing), None), target.reading, self._case
        recording = self._recorder.close_minute(self.now().timestamp())
        if server is None or case is None or reading is None or not recording.minutes:
            return
        lesson = Lesson(
            target=target.state.target,
            server=server.name,
            case=case,
            servers=len(target.state.standing) * count_replicas(reading.facts),
            kv_tokens=kv_tokens_of(reading.facts),
            at=self.now(),
            recording=recording,
            laws=tuple(self._laws),
            acceptance=self._acceptance,
            dropped=describe_drop(self._drop) if self._drop else "",
        )
        try:
            learned = await self.worker.call(learn, lesson)
        except WorkerError as error:
            self._report(str(error))
            return
        if case != self._case:  # observed meanwhile
            return
        self._failed, self._acceptance = "", learned.acceptance
        if learned.law is not None:
            self._laws.append(learned.law)
        self._set_model(learned.model)

    def _forget_law(self) -> None:
        self._recorder.forget_rows()
        self._laws.clear()
        self._acceptance = Acceptance()

    def _set_model(self, model: LearnedModel) -> None:
        """Log when a law comes into force, and when it is dropped."""
        had = self.model is not None and self.model.law is not None
        self.model = model
        if model.law is not None and not had:
            log.info("prediction.law_accepted", target=model.target, source=model.law.source)
        elif model.law is None and had:
            log.warning("prediction.law_dropped", target=model.target, why=model.why_no_law)

    def _report(self, why: str) -> None:
        if why != self._failed:
            self._failed = why
            log.warning("prediction.failed", why=why)


def _role(one: Deployment, in_force: Deployment) -> Role:
    return Role(
        budget=effective_batched_tokens(one),
        same_law=_law_key(one) == _law_key(in_force),
        steady=one == in_force,
    )


def _law_flags(setting: Setting) -> Setting:
    """Without those that leave the time of a step as it is."""
    return {knob: value for knob, value in setting.items() if knob not in SCHEDULING}


def _law_key(case: Deployment) -> tuple[Setting, str, str]:
    return _law_flags(case.setting), case.version, case.card.name if case.card else ""
