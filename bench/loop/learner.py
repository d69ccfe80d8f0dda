"""What the daemon knows of its servers when a world begins: the performance model in virtual time.

The law of step time was fitted, and accepted, before: to the log of the steps of ten minutes at a third of
the load, or at four fifths of the peak of the week where there is one, with the flags that the world begins
with.
The trace is exact: arrivals and lengths as the clients know them.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf

from bench.loop.clients import Clients
from bench.loop.engine import VirtualEngine, flags_of
from bench.loop.site import LoopSite
from bench.loop.world import LoadPhase, World
from flettner.agent.prediction.learned import LearnedModel
from flettner.performance_model.acceptance import Acceptance, ServedRequest, check_ahead
from flettner.performance_model.engine_settings import limits_of
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.fit import fit_law
from flettner.performance_model.step_law import UncertainLaw
from flettner.performance_model.trace import TraceRequest
from flettner.performance_model.work_windows import timed_windows
from flettner.simulator.scheduler import SimulatedRequest
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.values import Setting
from tests.support.fast_time import loop_now
from tests.support.virtual_server import VirtualServer

TRACE_S = 900.0
EVERY_S = 60.0  # between two traces
BEFORE_S, BEFORE_SHARE, PEAK_SHARE = 600.0, 1 / 3, 0.8
BEFORE_SEED = 7_000  # added to the seed of the run
MOST_ROWS = 600  # of a fit, evenly spaced
LLAMA = "meta-llama/Llama-3.1-8B"
"""The simulated model where no flag names a known one, on all GPUs but the T4, whose model is quantized."""


@dataclass(slots=True, kw_only=True)
class VirtualLearner:
    """`learned` is called every few seconds; the trace is as old as EVERY_S."""

    world: World
    seed: int
    site: LoopSite
    engine: VirtualEngine
    law: UncertainLaw | None = None
    acceptance: Acceptance | None = None
    _learned: LearnedModel | None = None
    _at_s: float = -inf

    def learned(self) -> LearnedModel | None:
        clients, now_s = self.site.clients, asyncio.get_running_loop().time()
        if clients is None or not self.engine.virtual:
            return self._learned
        if self.acceptance is None:
            self.law, self.acceptance = learn_before(self.world, self.seed)
        if now_s - self._at_s >= EVERY_S:
            self._at_s = now_s
            self._learned = self._learn(max(clients.since_s, now_s - TRACE_S))
        return self._learned

    def _learn(self, since_s: float) -> LearnedModel:
        name, server = next(iter(self.engine.virtual.items()))
        servers = len(self.engine.virtual) if self.world.servers > 1 else 1
        cache, is_accepted = (
            server.scheduler.cache,
            self.acceptance is not None and self.acceptance.is_accepted,
        )
        return LearnedModel(
            target="w",
            server=name,
            config=deployment(self.world, self.engine.servers[name].setting),
            fitted_at=loop_now(),
            trace=trace_of(self.world, self.site.sent, since_s)[::servers],
            servers=servers,
            counts_from="records",
            kv_tokens=cache.blocks * cache.block_size,
            law=self.law if is_accepted else None,
            law_source="iteration log",
            acceptance=self.acceptance,
            why_no_law="" if is_accepted else "not accepted",
        )


def learn_before(world: World, seed: int) -> tuple[UncertainLaw | None, Acceptance]:
    """Fit the law to an earlier load, and check it on requests that it has not seen; None without a law."""
    phases = tuple(replace(phase, rate=phase.rate * BEFORE_SHARE) for phase in world.load)
    if world.peak_rps is not None:
        rate = PEAK_SHARE * world.peak_rps / world.servers
        phases = (LoadPhase(BEFORE_S, rate, world.load[0].cv),)
    earlier = replace(world, load=phases)
    flags = flags_of(world, parse_setting(("python", *world.command)))
    server = VirtualServer("before", flags, now_s=0.0, unix_s=0.0)
    requests = [arrival.request for arrival in Clients(earlier, seed + BEFORE_SEED).until(BEFORE_S)]
    for request in requests:
        server.ask(request)
    server.advance(BEFORE_S + server.patience_s)
    ended = list(takewhile(lambda request: request.ended, requests))
    cache = server.scheduler.cache
    kv_tokens = cache.blocks * cache.block_size
    rows = list(timed_windows(server.steps, kv_tokens))
    rows = rows[:: max(1, len(rows) // MOST_ROWS)]
    limits = limits_of(deployment(world, parse_setting(("python", *world.command))), kv_tokens=kv_tokens)
    try:
        law = fit_law([work for _, work in rows], draws=8, source="steps of the simulated server")
        return law, check_ahead(
            trace_of(world, ended, 0.0), [_served(request) for request in ended], rows, limits
        )
    except PredictionInputError:
        return None, Acceptance(itl=(), ttft=())


def trace_of(world: World, requests: Iterable[SimulatedRequest], since_s: float) -> list[TraceRequest]:
    return [
        TraceRequest(
            arrival_s=request.arrived_at - since_s,
            prompt_tokens=request.prompt,
            output_tokens=request.wanted,
            cached_tokens=world.shared_prefix,
            prefix_group="shared" if world.shared_prefix else "",
        )
        for request in requests
        if request.arrived_at >= since_s
    ]


def _served(request: SimulatedRequest) -> ServedRequest:
    first_s, last_s = request.first_at or 0.0, request.last_at or 0.0
    return ServedRequest(
        ttft_s=first_s - request.arrived_at, itl_s=(last_s - first_s) / max(1, request.wanted - 1)
    )


def deployment(world: World, setting: Setting) -> ServeConfig:
    """Return the deployment as a daemon knows it, with the GPU and the model that are simulated."""
    flags = flags_of(world, setting)
    gpu, known = flags.simulation.hardware, find_model(flags.model) or find_model(LLAMA)
    model = None if gpu.name.startswith("t4") or known is None else replace(known, max_len=gpu.max_model_len)
    return ServeConfig(setting=setting, card=find_gpu(gpu.gpu), model=model)
