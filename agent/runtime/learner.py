"""Learns one target's model while the daemon runs: records its load, and has the worker fit the law."""

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace

import structlog

from flettner.agent.domain.errors import ActError, WorkerError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Engine, Now
from flettner.agent.domain.prediction_check import LawDrop
from flettner.agent.domain.reading import EngineSample, RequestSample, Sample, count_replicas
from flettner.agent.machine.transitions import describe_serve_config
from flettner.agent.prediction.learned import TRACE_S, FittedLaw, LearnedModel, describe_drop, without_dropped
from flettner.agent.prediction.lesson import LAWS, LOG_FLAG, Lesson, learn
from flettner.agent.prediction.recorder import Recorder, Role
from flettner.agent.prediction.saved_model import SavedModel, law_key
from flettner.agent.prediction.step_rows import kv_tokens_of, read_steps
from flettner.agent.prediction.worker import Worker
from flettner.agent.runtime.companion import Observable
from flettner.agent.runtime.model_file import ModelFile
from flettner.performance_model.acceptance import Acceptance
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import effective_batched_tokens, engine_count

LEARN_EVERY_S = 60.0
READ_EVERY_S = 15.0  # of an iteration log; step_rows keeps a sample of each read
log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Learner:
    """`model`: the latest; None before the first lesson. `file`: keeps it over a restart."""

    worker: Worker
    engine: Engine
    now: Now
    file: ModelFile | None = None
    gpu: str = ""  # as the operator wrote it
    model: LearnedModel | None = None
    _recorder: Recorder = field(default_factory=Recorder)
    _config: ServeConfig | None = None  # in force
    _roles: dict[str, Role] = field(default_factory=dict)  # by server
    _laws: deque[FittedLaw] = field(default_factory=lambda: deque(maxlen=LAWS))
    _acceptance: Acceptance = field(default_factory=Acceptance)
    _drop: LawDrop | None = None  # the latest
    _last_step: int = -1
    _past: SavedModel | None = None  # from before the start, until the recording is as long as a trace
    _failed: str = ""  # why the worker gave no result, as last logged

    def add(self, sample: Sample) -> None:
        if isinstance(sample, RequestSample):
            self._recorder.add_requests(sample)
        elif isinstance(sample, EngineSample) and (role := self._roles.get(sample.server)) is not None:
            self._recorder.add_scrape(sample, role)

    async def run(self, target: Observable) -> None:
        """Run until cancelled."""
        if self.file:
            self.file.read(target.state.target)
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
        """Note the servers that run, whose samples are recorded. Forget a dropped law, with its steps."""
        drop = target.state.law_drop
        if drop != self._drop:
            self._drop = drop
            self._forget_law()
            if self.model is not None:
                self._set_model(without_dropped(self.model, drop))
        first = next(iter(target.state.fleet.running), None)
        if first is None:
            return
        config = _known(self._describe(first, target), self._config)
        if self._config is not None and law_key(config) != law_key(self._config):
            self._forget_law()
            self._last_step = -1  # another log
        if self._config is not None and config.setting != self._config.setting:
            self._recorder.mark_change()
        self._config = config
        self._restore(first.name, config)
        self._roles = {
            server.name: _role(_known(self._describe(server, target), config), config)
            for server in target.state.reachable
        }

    def _describe(self, server: Server, target: Observable) -> ServeConfig:
        return describe_serve_config(server, target.reading, self.gpu)

    async def read_log(self, target: Observable) -> None:
        """Sample the iteration log of one server: equal servers take equally long for equal steps."""
        server = next(iter(target.state.fleet.running), None)
        if server is None or target.reading is None or self._config is None:
            return
        kv_tokens = kv_tokens_of(target.reading.facts, engine_count(self._config))
        if kv_tokens is None or server.setting.get(LOG_FLAG) is not True:
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
        """Learn from the recording in the worker. Without servers the model stays."""
        self.observe(target)
        server, reading, config = next(iter(target.state.fleet.running), None), target.reading, self._config
        recording = self._recorder.close_minute(self.now().timestamp())
        if server is None or config is None or reading is None or not recording.minutes:
            return
        if self.file:
            self.file.give_up()
        lesson = Lesson(
            target=target.state.target,
            server=server.name,
            config=config,
            servers=len(target.state.fleet.running) * count_replicas(reading.facts) * engine_count(config),
            kv_tokens=kv_tokens_of(reading.facts, engine_count(config)),
            at=self.now(),
            recording=recording,
            laws=tuple(self._laws),
            acceptance=self._acceptance,
            dropped=describe_drop(self._drop) if self._drop else "",
            past=self._past,
            last_step=self._last_step,
        )
        try:
            learned = await self.worker.call(learn, lesson)
        except WorkerError as error:
            self._report(str(error))
            return
        if config != self._config:  # observed meanwhile
            return
        self._failed, self._acceptance = "", learned.acceptance
        if learned.law is not None:
            self._laws.append(learned.law)
        self._set_model(learned.model)
        if self.file:
            await asyncio.to_thread(self.file.write, learned.saved)  # up to 0.8 MB
        if recording.minutes[-1].end_s - recording.minutes[0].begin_s >= TRACE_S:
            self._past = None

    def _restore(self, server: str, config: ServeConfig) -> None:
        """Restore what was learned before the daemon started."""
        saved = self.file.take(config) if self.file else None
        if saved is None:
            return
        if self._drop is not None and self._drop.at >= saved.at:
            saved = saved.without_law()
        self._past, self._last_step, self._acceptance = saved, saved.steps.last, saved.acceptance
        self._laws.extend(saved.laws)
        restored = saved.model(server, config)
        self.model = without_dropped(restored, self._drop)
        log.info("prediction.restored", target=saved.target, at=saved.at.isoformat(), laws=len(saved.laws))

    def _forget_law(self) -> None:
        self._past = self._past.without_law() if self._past else None
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


def _role(config: ServeConfig, in_force: ServeConfig) -> Role:
    return Role(
        budget=effective_batched_tokens(config),
        same_law=law_key(config) == law_key(in_force),
        steady=config == in_force,
        engines=engine_count(config),
    )


def _known(config: ServeConfig, before: ServeConfig | None) -> ServeConfig:
    """Fill in GPU and version from before: a source that is lost for a while changes no server."""
    if before is None:
        return config
    return replace(config, card=config.card or before.card, version=config.version or before.version)
