"""The goodput of a setting under a world's load without a daemon, and the best setting of a sweep; cached."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from hashlib import sha256
from itertools import islice, product
from math import inf
from pathlib import Path

from bench.loop.clients import Clients
from bench.loop.engine import flags_of
from bench.loop.world import World
from flettner.actuators.vllm.gpu_demand import gpus_needed
from flettner.agent.domain.model import Objective, Slo
from flettner.simulator.drafts import read_drafts
from flettner.simulator.flags import Flags, InvalidFlagError
from flettner.simulator.memory import StartError
from flettner.simulator.text import draws
from flettner.vllm_facts import drafts as drafted
from flettner.vllm_facts.flag_parser import parse_setting
from flettner.vllm_facts.values import Knob, Setting, Value
from tests.support.data_parallel_server import new_virtual_server
from tests.support.virtual_server import Ended

CACHE = Path(".cache/loop")
SEEDS = (9001, 9002)  # of the loads that settings are compared on; no run has them
ENOUGH = 0.985  # a setting with this goodput cannot be beaten by more than 1.5 points
CURE, NO_CURE = 0.10, 0.02
PART_SHOWS = 0.05  # difference of the goodput of a part of the load to that of all
TAIL_S = 180.0  # the end of a run, for the regret
LATE_S = 120.0  # after the load, for the answers to the last requests


@dataclass(frozen=True, slots=True)
class Goodput:
    """Share of the requests that met the SLO: of the whole load, and of its last TAIL_S."""

    whole: float
    tail: float


NONE = Goodput(0.0, 0.0)


def measured(slo: Slo, request: Ended) -> list[tuple[Objective, float | None]]:
    """Return each objective, with the seconds of the request that it limits."""
    pairs = (
        (slo.ttft, request.ttft_s),
        (slo.itl, request.gap_s),
        (slo.e2e, request.ended_s - request.arrived_s),
    )
    return [(objective, value) for objective, value in pairs if objective is not None]


def is_good(world: World, request: Ended) -> bool:
    return request.outcome == "ok" and not any(
        value is not None and value > objective.under_s for objective, value in measured(world.slo, request)
    )


def configured(world: World) -> Setting:
    """Return the setting that the world begins with."""
    return parse_setting(("python", *world.command))


def effective(flags: Flags) -> Mapping[Knob, Value]:
    """Return the value of each knob in this server, with vLLM's defaults filled in."""
    limits, memory = flags.limits, flags.memory
    drafts = read_drafts(flags.speculative_config, 0.0, draws(0))
    return {
        **({drafted.CONFIG: drafts.tokens} if drafts else {}),
        "tensor_parallel_size": flags.tensor_parallel_size,
        "data_parallel_size": flags.data_parallel_size,
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


def goodput(world: World, setting: Setting, seeds: Sequence[int] = SEEDS) -> Goodput:
    """Return the mean over the seeds; NONE for a setting with which the server does not start."""
    try:
        flags = flags_of(world, setting)
        made = [_cached(world, flags, setting, seed) for seed in seeds]
    except (InvalidFlagError, StartError):
        return NONE
    return Goodput(*(round(sum(values) / len(made), 5) for values in zip(*map(astuple, made), strict=True)))


def _cached(world: World, flags: Flags, setting: Setting, seed: int) -> Goodput:
    """Settings that come to the same flags share an entry. Raises StartError."""
    shape = repr((seed, sorted(effective(flags).items()), flags.limits, flags.memory))
    path = CACHE / world.key / f"{sha256(shape.encode()).hexdigest()[:16]}.json"
    if path.exists():
        return Goodput(*json.loads(path.read_text(encoding="utf-8"))["goodput"])
    result = _once(world, flags, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps({"goodput": astuple(result), "setting": dict(setting)}), encoding="utf-8")
    fresh.replace(path)
    return result


def _once(world: World, flags: Flags, seed: int) -> Goodput:
    """Run the whole load on one server, cold at its begin. Raises StartError."""
    flags = replace(flags, seed=draws(seed, "server").getrandbits(32))
    server, clients = new_virtual_server("static", flags, now_s=0.0, unix_s=0.0), Clients(world, seed)
    arrived: list[float] = []
    for arrival in clients.until(world.seconds):
        arrived.append(arrival.request.arrived_at)
        server.ask(arrival.request)
    server.advance(world.seconds + LATE_S)
    good = [request.arrived_s for request in server.take_ended() if is_good(world, request)]
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
    """Sweep a usual setting, each other knob, then caps times budgets and the others again; on one seed."""
    base, some, short = configured(world), SEEDS[:1], _shorter(world)
    choice = Best({}, goodput(short, base, some), 1)
    stages = (islice(_pairs(), 1), _singles(base), _pairs(), _singles(base))
    for stage in (_layouts(world),) if world.gpus is not None else stages:
        for change in stage:
            if min(astuple(choice.goodput)) >= ENOUGH:
                break
            wanted = {**choice.change, **change}
            new = goodput(short, {**base, **wanted}, some)
            better = new.whole + new.tail > choice.goodput.whole + choice.goodput.tail
            choice = (
                Best(wanted, new, choice.tried + 1) if better else replace(choice, tried=choice.tried + 1)
            )
    own, changed = goodput(world, base), goodput(world, {**base, **choice.change})
    if own.whole + own.tail >= changed.whole + changed.tail:
        return replace(choice, change={}, goodput=own)
    return replace(choice, goodput=changed)


def least_gpus(world: World) -> int | None:
    """Return the fewest GPUs with which the SLO is kept, by a sweep of the layouts; None: with none."""
    short, base = _shorter(world), configured(world)
    slo = world.slo
    share = min(o.share for o in (slo.ttft, slo.itl, slo.e2e) if o is not None)
    for layout in sorted(_layouts(world), key=gpus_needed):
        if goodput(short, {**base, **layout}, SEEDS[:1]).whole >= share:
            return gpus_needed(layout)
    return None


def _layouts(world: World) -> Iterator[Setting]:
    """The ways to use as many GPUs as the world begins with, or fewer."""
    most = gpus_needed(configured(world))
    for tp, dp in product((1, 2, 4, 8), range(1, most + 1)):
        if tp * dp <= most:
            yield {"tensor_parallel_size": tp, "data_parallel_size": dp}


def _shorter(world: World) -> World:
    """Shorten a load that never changes to a third, if that is enough to compare settings."""
    if len(world.load) > 1 or len(world.mixes) > 1:
        return world
    part = replace(world, load=(replace(world.load[0], seconds=world.seconds / 3),))
    base, some = configured(world), SEEDS[:1]
    same = abs(goodput(part, base, some).whole - goodput(world, base, some).whole) <= PART_SHOWS
    return part if same else world


def of_start(world: World) -> Goodput:
    return goodput(world, configured(world))


def flaw(world: World, own: Goodput, choice: Best) -> str:
    """Return why the world is not what it says; empty if it is.

    A cure gains at least CURE, of the whole load or at its end; where nothing is right, none gains NO_CURE.
    """
    gain = max(choice.goodput.whole - own.whole, choice.goodput.tail - own.tail)
    if world.right is None:
        return f"a setting gains {100 * gain:.1f} points" if gain > NO_CURE else ""
    if gain < CURE:
        return f"no setting gains more than {100 * gain:.1f} points"
    moved = {**configured(world), **choice.change}
    return "" if moves_right(world, configured(world), moved) else "the best setting moves no knob of `right`"


def moves_right(world: World, before: Setting, after: Setting) -> bool:
    """Return whether a knob of `right` moved its way, as the server understands both settings."""
    try:
        old, new = (effective(flags_of(world, setting)) for setting in (before, after))
    except InvalidFlagError:
        return False
    for knob, direction in (world.right or {}).items():
        unset = inf if knob in SIZES else 0.0  # vLLM sizes the cache then
        was, now = (float(knobs.get(knob) or unset) for knobs in (old, new))
        if now > was if direction == "up" else now < was:
            return True
    return False


DRAFTED = (1, 2, 3, 4, 6, 8)
SIZES = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
CAPS, BUDGETS = (128, 256, 32, 64, 512, 1024, 16, 8), (2048, 8192, 512, 256)
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


def _singles(base: Setting) -> Iterable[Setting]:
    """Each other knob, and the numbers of draft tokens where the world begins with speculative decoding."""
    if base.get(drafted.CONFIG) is not None:
        yield {drafted.CONFIG: None}
        yield from (drafted.set_count(base, count) for count in DRAFTED)
    yield from ({knob: value} for knob, values in OTHERS.items() for value in values)
