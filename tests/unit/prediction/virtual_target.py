"""One target in virtual time: clients, a simulated server, and the learner that watches it."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import log
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from flettner.agent.domain.events import Event
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.headroom import HourPeak
from flettner.agent.domain.model import Server
from flettner.agent.domain.prediction_check import LawDrop
from flettner.agent.domain.reading import Reading, RequestSample
from flettner.agent.domain.state import State
from flettner.agent.observe.aggregator import Aggregator
from flettner.agent.observe.spending import Spending
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.worker import InlineWorker
from flettner.agent.runtime.learner import Learner
from flettner.agent.runtime.model_file import ModelFile
from flettner.performance_model.iteration_log import StepRecord
from flettner.performance_model.trace import TraceRequest
from flettner.simulator.flags import parse
from flettner.simulator.scheduler import SimulatedRequest
from flettner.vllm_facts.values import Setting
from tests.support.data_parallel_server import new_virtual_server
from tests.support.fake_engine import FakeEngine
from tests.support.virtual_server import VirtualServer

START = datetime(2026, 1, 1, tzinfo=UTC)
BYTES_PER_TOKEN, FRAME_BYTES = 4, 80  # of a request's body
SETTING: Setting = {"model": "tiny", "max_num_seqs": 64, "max_num_batched_tokens": 2048}
LOG: Setting = {**SETTING, "enable_logging_iteration_details": True}


@dataclass(slots=True, kw_only=True)
class VirtualTarget:
    """`has_proxy`: requests are recorded. `has_log`: the engine gives the server's log."""

    setting: Setting = field(default_factory=lambda: dict(SETTING))
    gpu: str = "4090-8b"
    rate: float = 4.0
    has_proxy: bool = True
    has_log: bool = True
    outside_s: float = 0.0  # that a TTFT takes at the proxy beside that of the engine
    reading: Reading | None = None
    spending: Spending = field(default_factory=Spending)
    peaks: Sequence[HourPeak] = ()
    law_drop: LawDrop | None = None
    trace: list[TraceRequest] = field(default_factory=list)  # arrivals since START
    models: list[LearnedModel] = field(default_factory=list)  # of each minute
    engine: FakeEngine = field(default_factory=FakeEngine)
    file: Path | None = None  # of what was learned
    learner: Learner = field(init=False)
    _aggregator: Aggregator = field(default_factory=Aggregator)
    _random: Random = field(default_factory=lambda: Random(5))  # noqa: S311 - reproducible
    _server: VirtualServer = field(init=False)
    _log: list[StepRecord] = field(default_factory=list)
    _now_s: int = 0
    _due_s: float = 0.0

    def __post_init__(self) -> None:
        self.start_daemon()
        self.replace_server(self.setting, self.gpu)

    @property
    def state(self) -> State:
        blue = Server(name="chat-r0", setting=self.setting, address="127.0.0.1:8101")
        return State(target="chat", fleet=Fleet(servers=(blue,)), law_drop=self.law_drop)

    def emit(self, event: Event) -> None:
        raise AssertionError(f"learning emits nothing, but did {event}")

    @property
    def model(self) -> LearnedModel:
        return self.models[-1]

    def replace_server(self, setting: Setting, gpu: str) -> None:
        """Another process of the same name."""
        self.setting, self.gpu = setting, gpu
        engines = {"data_parallel_size": setting.get("data_parallel_size", 1)}
        flags = [
            f"--{knob.replace('_', '-')}={value}"
            for knob, value in {**SETTING, **engines}.items()
            if knob != "model"
        ]
        self._server = new_virtual_server(
            "chat-r0",
            parse(["--model", "tiny", *flags, "--sim-hardware", gpu]),
            now_s=float(self._now_s),
            unix_s=START.timestamp() + self._now_s,
        )
        self._log = []
        self.learner.observe(self)

    def start_daemon(self) -> None:
        """The servers go on; what a daemon has in memory is lost."""
        file = ModelFile(path=self.file, now=self.now) if self.file else None
        self.learner = Learner(worker=InlineWorker(), engine=self.engine, now=self.now, file=file)
        self.reading, self._aggregator = None, Aggregator()
        if file:
            file.read(self.state.target)

    async def live(self, minutes: int) -> None:
        for _ in range(60 * minutes):
            self._second()
            if self._now_s % 15 == 0:
                self.reading = self._aggregator.reading("chat-r0", self.now())
                self._log += [step for _, step in self._server.steps]
                self._server.steps.clear()
                self.engine.logs["chat-r0"] = _lines(self._log) if self.has_log else ()
                self.learner.observe(self)
                await self.learner.read_log(self)
            if self._now_s % 60 == 0:
                await self.learner.learn(self)
                self.models += [self.learner.model] if self.learner.model else []

    def _second(self) -> None:
        self._now_s += 1
        while self._due_s < self._now_s:
            prompt, output = self._draw(500, 2000), self._draw(150, 1000)
            self.trace.append(TraceRequest(arrival_s=self._due_s, prompt_tokens=prompt, output_tokens=output))
            self._server.ask(
                SimulatedRequest(
                    name=str(len(self.trace)),
                    prompt=prompt,
                    wanted=output,
                    hashes=[len(self.trace) << 20 | block for block in range(prompt // 16)],
                    arrived_at=self._due_s,
                )
            )
            self._due_s += self._random.expovariate(self.rate)
        self._server.advance(self._now_s)
        ended = self._server.take_ended()
        records = self._server.take_records(self._now_s)
        if self.has_proxy and records:
            at_s = {request.ended_s - request.arrived_s: request.arrived_s for request in ended}
            seen = tuple(
                replace(
                    record,
                    ttft_s=None if record.ttft_s is None else record.ttft_s + self.outside_s,
                    began_s=START.timestamp() + at_s[record.duration_s],
                    request_bytes=FRAME_BYTES + BYTES_PER_TOKEN * self._prompt_at(at_s[record.duration_s]),
                )
                for record in records
                if record.duration_s in at_s
            )
            self.learner.add(RequestSample(at=self.now(), requests=seen))
        scrape = self._server.scrape(self.now(), self._now_s)
        self._aggregator.add(scrape)
        self.learner.add(scrape)

    def _prompt_at(self, arrival_s: float) -> int:
        return next(
            request.prompt_tokens for request in reversed(self.trace) if request.arrival_s == arrival_s
        )

    def _draw(self, middle: int, most: int) -> int:
        return int(min(most, max(4, self._random.lognormvariate(log(middle), 0.8))))

    def now(self) -> datetime:
        return START + timedelta(seconds=self._now_s)


_taught: dict[str, tuple[VirtualTarget, bytes]] = {}  # with the content of its file, by the setting


async def teach(setting: Setting = SETTING, *, folder: Path | None = None) -> VirtualTarget:
    """Return a target after nine minutes, with an accepted law: a copy, as they take seconds to compute.

    `folder`: where what it learned is in a file.
    """
    if str(setting) not in _taught:
        with TemporaryDirectory() as home:
            target = VirtualTarget(setting=dict(setting), file=Path(home) / "model.json")
            await target.live(9)
            assert target.file is not None
            assert target.model.law is not None
            _taught[str(setting)] = target, target.file.read_bytes()
    before, content = _taught[str(setting)]
    target = deepcopy(before)
    target.file = target.learner.file = None
    if folder is not None:
        target.file = folder / "model.json"
        target.file.write_bytes(content)
    return target


def _lines(steps: Sequence[StepRecord]) -> tuple[str, ...]:
    """The last of them as in vLLM's log."""
    first = max(0, len(steps) - 1500)
    return tuple(
        f"Engine 000: Iteration({first + number}): {step.prefills} context requests, "
        f"{step.prefill_tokens} context tokens, {step.decodes} generation requests, "
        f"{step.decode_tokens} generation tokens, iteration elapsed time: {1000 * step.seconds:.2f} ms, "
        f"GPU KV cache usage: {step.kv_share or 0:.1%}"
        for number, step in enumerate(steps[first:])
    )
