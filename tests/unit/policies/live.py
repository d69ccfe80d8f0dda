"""Servers under load for policy tests: simulated in virtual time, read like the daemon does."""

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from random import Random

from flettner.agent.domain.model import Bound, Proposal, Slo
from flettner.agent.domain.ports import Context, Policy
from flettner.agent.domain.reading import Gpu, GpuSample, Reading
from flettner.agent.observe.aggregator import Aggregator
from flettner.agent.observe.engine_sample import sample
from flettner.agent.plugins import loader
from flettner.policies.conformance.safety_checks import harms
from flettner.rules.precedence import ranked
from flettner.simulator.engine import SimulatedEngine
from flettner.simulator.flags import parse
from flettner.simulator.hardware import PRESETS
from flettner.simulator.server import build_server
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.metrics.page_totals import PageTotals
from flettner.vllm_facts.metrics.totals import totals
from tests.support.fast_time import NOON, in_no_time

SERVER = "chat-r0"
MIB = 1 << 20
BOUNDS = {"gpu_memory_utilization": Bound(min=0.5, max=0.92), "watermark": Bound(min=0.0, max=0.1)}
NO_PROMISE = Slo()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`streams` closed-loop clients plus `rate` requests per second. Lengths in tokens."""

    prompt: int = 200
    output: int = 100
    streams: int = 0
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    flags: str
    loads: tuple[Load, ...] = ()
    slo: Slo = NO_PROMISE
    hardware: str = "t4-8b-awq"
    version: str = "0.32.0"
    gpu_busy: float = 0.95
    gpu_used: float | None = None  # share of its memory; None: the share given by the flags
    settle_s: int = 30  # before the window starts
    window_s: int = 30

    @property
    def argv(self) -> list[str]:
        return ["vllm", "serve", "org/model", *shlex.split(self.flags)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """Proposals of all shipped policies for one reading; `winners` in order of precedence."""

    reading: Reading
    context: Context
    proposals: tuple[Proposal, ...]
    winners: tuple[Proposal, ...]

    @property
    def changes(self) -> tuple[Proposal, ...]:
        return tuple(p for p in self.winners if p.to and p.klass != "note")

    @property
    def first(self) -> Proposal | None:
        return next(iter(self.changes), None) or next(iter(self.winners), None)

    @property
    def harm(self) -> tuple[str, ...]:
        return harms(self.reading, self.context, self.winners)

    def describe(self) -> str:
        return "\n".join(f"{p.rule} {dict(p.to)} ({p.klass}): {p.why}" for p in self.winners) or "nothing"


def serve(situation: Situation) -> Reading:
    """Serve the load and read the server."""
    return in_no_time(_served(situation))


def advised(situation: Situation) -> Advised:
    """Serve the load, then evaluate all shipped policies."""
    reading = serve(situation)
    context = Context(setting=parse_setting(situation.argv), slo=situation.slo, bounds=BOUNDS)
    return advise(reading, context)


@cache
def policies() -> tuple[Policy, ...]:
    """Return all shipped policies with default options."""
    return tuple(loader.load_plugin("policies", name)() for name in loader.list_plugins("policies"))


def advise(reading: Reading, context: Context) -> Advised:
    proposals = [proposal for policy in policies() for proposal in policy.propose(reading, context)]
    winners = ranked(proposals).winners
    return Advised(reading=reading, context=context, proposals=tuple(proposals), winners=tuple(winners))


def reading_of(
    pages: Sequence[bytes], *, every_s: float, slo: Slo, version: str, gpus: tuple[Gpu, ...] = ()
) -> Reading:
    """Return the reading that the daemon derives from successive scrapes."""
    fold = Aggregator(slo=slo, span_s=every_s * (len(pages) - 1), fresh_s=every_s)
    before: PageTotals | None = None
    at = NOON
    for page in pages:
        after = totals(page)
        fold.add(sample(before, after, at=at, server=SERVER, interval_s=every_s, version=version))
        before, at = after, at + timedelta(seconds=every_s)
    end = at - timedelta(seconds=every_s)
    fold.add(GpuSample(at=end, gpus=gpus))
    reading = fold.reading(SERVER, end)
    assert reading is not None
    return reading


async def _served(situation: Situation) -> Reading:
    flags = parse([*situation.argv[2:], "--sim-jitter", "0", "--sim-hardware", situation.hardware])
    engine, _ = build_server(flags, now=lambda: 1_800_000_000.0)
    random = Random(7)  # noqa: S311 - simulation, not cryptography
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(engine.run())]
        for load in situation.loads:
            running += [tasks.create_task(_stream(engine, load, random)) for _ in range(load.streams)]
            if load.rate:
                running.append(tasks.create_task(_arrivals(engine, load, random, tasks)))
        await asyncio.sleep(situation.settle_s)
        pages = [engine.metrics.text(engine.scheduler).encode()]
        for _ in range(situation.window_s):
            await asyncio.sleep(1.0)
            pages.append(engine.metrics.text(engine.scheduler).encode())
        for task in running:
            task.cancel()
        for client in [task for task in asyncio.all_tasks() if task.get_name() == "request"]:
            client.cancel()
    utilization = flags.memory.gpu_memory_utilization
    gpus = (_gpu(situation, utilization if situation.gpu_used is None else situation.gpu_used),)
    return reading_of(pages, every_s=1.0, slo=situation.slo, version=situation.version, gpus=gpus)


def _gpu(situation: Situation, used: float) -> Gpu:
    card = PRESETS[situation.hardware]
    return Gpu(
        index=0,
        uuid="GPU-1",
        name=card.gpu,
        utilization=situation.gpu_busy,
        memory_used_mib=used * card.memory / MIB,
        memory_total_mib=card.memory / MIB,
        temperature_c=60.0,
        throttle_reasons=0,
    )


async def _stream(engine: SimulatedEngine, load: Load, random: Random) -> None:
    while True:
        await _request(engine, load, random)


async def _arrivals(engine: SimulatedEngine, load: Load, random: Random, tasks: asyncio.TaskGroup) -> None:
    while True:
        await asyncio.sleep(random.expovariate(load.rate))
        tasks.create_task(_request(engine, load, random), name="request")


async def _request(engine: SimulatedEngine, load: Load, random: Random) -> None:
    prompt = f"{random.getrandbits(32):08x}" * (load.prompt // 2)  # 4 characters a token
    output = max(1, round(load.output * random.uniform(0.5, 1.5)))
    stream = engine.submit(engine.read(prompt), output, ignore_eos=True)
    while (await stream.token())[1] is None:
        pass
