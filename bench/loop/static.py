"""The goodput of a setting under a world's load without a daemon, and the best setting of a sweep; cached."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from pathlib import Path

from bench.loop.clients import Clients
from bench.loop.engine import flags_of
from bench.loop.server import Ended, VirtualServer
from bench.loop.world import World
from simulator.flags import Flags, InvalidFlagError
from simulator.memory import StartError
from simulator.text import draws
from vllm_facts.flag_parser import parse_setting
from vllm_facts.values import Knob, Setting, Value

CACHE = Path(".cache/loop")
SEEDS = (9001, 9002)  # of the loads that settings are compared on; no run has them
ENOUGH = 0.995  # a setting with this goodput cannot be beaten by more than half a point
TAIL_S = 180.0  # the end of a run, for the regret


@dataclass(frozen=True, slots=True)
class Goodput:
    """Share of the requests that met the SLO: of the whole load, and of its last TAIL_S."""

    whole: float
    tail: float


NONE = Goodput(0.0, 0.0)


def is_good(world: World, one: Ended) -> bool:
    slo = world.slo
    measured = ((slo.ttft, one.ttft_s), (slo.itl, one.gap_s), (slo.e2e, one.ended_s - one.arrived_s))
    return one.outcome == "ok" and not any(
        objective is not None and value is not None and value > objective.under_s
        for objective, value in measured
    )


def configured(world: World) -> Setting:
    """The setting that the world begins with."""
    return parse_setting(("python", *world.command))


def effective(flags: Flags) -> Mapping[Knob, Value]:
    """What the knobs are worth to this server, with vLLM's defaults filled in."""
    limits, memory = flags.limits, flags.memory
    return {
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "long_prefill_token_threshold": limits.long_prefill_token_threshold,
        "watermark": limits.watermark,
        "gpu_memory_utilization": memory.gpu_memory_utilization,
        "max_model_len": memory.max_model_len,
        "kv_cache_memory_bytes": memory.kv_cache_memory_bytes or 0,
        "num_gpu_blocks_override": memory.num_gpu_blocks_override or 0,
        "max_cudagraph_capture_size": memory.largest_graph,
        "enforce_eager": flags.enforce_eager,
        "enable_prefix_caching": flags.enable_prefix_caching,
    }


def goodput(world: World, setting: Setting) -> Goodput:
    """The mean over SEEDS; NONE for a setting with which the server does not start."""
    try:
        flags = flags_of(world, setting)
    except InvalidFlagError:
        return NONE
    shape = repr((sorted(effective(flags).items()), flags.limits, flags.memory, flags.max_num_queued_reqs))
    path = CACHE / world.key / f"{sha256(shape.encode()).hexdigest()[:16]}.json"
    if path.exists():
        return Goodput(*json.loads(path.read_text(encoding="utf-8"))["goodput"])
    try:
        all_ = [_once(world, flags, seed) for seed in SEEDS]
    except StartError:
        all_ = [NONE]
    found = Goodput(
        *(
            round(sum(values) / len(values), 5)
            for values in zip(*((g.whole, g.tail) for g in all_), strict=True)
        )
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {"goodput": [found.whole, found.tail], "setting": dict(setting)}
    fresh = path.with_suffix(f".{id(told)}.new")
    fresh.write_text(json.dumps(told), encoding="utf-8")
    fresh.replace(path)
    return found


def _once(world: World, flags: Flags, seed: int) -> Goodput:
    flags = replace(flags, seed=draws(seed, "server").getrandbits(32))
    server, clients = VirtualServer("static", flags, now_s=0.0, unix_s=0.0), Clients(world, seed)
    arrived: list[float] = []
    for coming in clients.until(world.seconds):
        arrived.append(coming.request.arrived_at)
        server.ask(coming.request)
    server.advance(world.seconds + 60.0)
    good = [one.arrived_s for one in server.take_ended() if is_good(world, one)]
    since_s = world.seconds - TAIL_S
    late = [at for at in arrived if at >= since_s]
    return Goodput(len(good) / max(1, len(arrived)), sum(at >= since_s for at in good) / max(1, len(late)))


@dataclass(frozen=True, slots=True)
class Best:
    """The best setting that a sweep found, as changes of the world's own."""

    change: Mapping[Knob, Value]
    goodput: Goodput
    tried: int


def best(world: World) -> Best:
    """Sweep the caps times the budgets, then each other knob on top of the best, twice."""
    base = configured(world)
    found = Best({}, goodput(world, base), 1)
    for stage in (_pairs(), *(_singles(), _pairs()) * 2):
        for change in stage:
            if found.goodput.whole >= ENOUGH and found.goodput.tail >= ENOUGH:
                return found
            wanted = {**found.change, **change}
            new = goodput(world, {**base, **wanted})
            better = (new.whole + new.tail) > (found.goodput.whole + found.goodput.tail)
            found = Best(
                wanted if better else found.change, new if better else found.goodput, found.tried + 1
            )
    return found


CAPS, BUDGETS = (64, 256, 16, 32, 128, 512, 1024, 8, 4), (2048, 8192, 512, 1024, 4096, 256, 16384)
OTHERS: Mapping[Knob, Sequence[Value]] = {
    "enforce_eager": (False,),
    "enable_prefix_caching": (True, False),
    "gpu_memory_utilization": (0.95, 0.92, 0.9),
    "watermark": (0.0, 0.01, 0.05),
    "max_cudagraph_capture_size": (512, 128),
    "long_prefill_token_threshold": (0, 256, 1024),
    "kv_cache_memory_bytes": (None,),
    "num_gpu_blocks_override": (None,),
    "max_model_len": (4096,),
}


def _pairs() -> Iterator[Setting]:
    for seqs, budget in product(CAPS, BUDGETS):
        if budget >= seqs:
            yield {"max_num_seqs": seqs, "max_num_batched_tokens": budget}


def _singles() -> Iterable[Setting]:
    return ({knob: value} for knob, values in OTHERS.items() for value in values)
