"""Worlds in which nothing is to be gained: how often the rules, and the model beside them, begin a canary.

python -m bench.loop.flat [--worlds N] [--first N] [--budget-s N]

The worlds are drawn by their numbers: GPU and its true step times, lengths, objectives, burstiness, and a
rate of 0.4 to 2.5 times what vLLM's default flags carry. Flat are those where the best of SWEEP gains at most
2 points over the default on the first half of the load. Only those are run, until the queue is empty. Prints
a line for each world and writes all to bench/results/flat.json.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import exp, log
from random import Random
from time import process_time
from typing import Any

from bench.loop.clients import Clients
from bench.loop.engine import flags_of
from bench.loop.learner import learn_before, trace_of
from bench.loop.static import ENOUGH, NO_CURE, SEEDS, configured, goodput
from bench.loop.story import play
from bench.loop.world import ModelUse, World, parse_world
from bench.results import new_parser, write
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.outcome import Goals
from flettner.performance_model.prediction import find_headroom
from flettner.performance_model.step_law import StepLaw
from flettner.simulator.hardware import PRESETS, Hardware
from flettner.vllm_facts.values import Setting
from tests.support.virtual_server import VirtualServer

SECONDS, PROBE_S = 600.0, 240.0
SWEEP: Sequence[Setting] = (
    *(
        {"max_num_seqs": seqs, "max_num_batched_tokens": budget}
        for seqs, budget in product((32, 128, 512), (512, 2048, 8192))
    ),
    {"gpu_memory_utilization": 0.95},
    {"watermark": 0.05},
)
RATES = (0.4, 2.5)  # times what the default carries
OFF = 0.15  # sigma of the factors on the true step times
TIMES = ("token_us", "weights_us", "head_us", "kv_read_us", "host_step_us", "seq_us")
USES: Sequence[ModelUse] = ("off", "on")
Row = dict[str, Any]


def draw_world(number: int) -> World:
    """Draw the world of this number; the same number gives the same world."""
    random = Random(f"flat:{number}")  # noqa: S311 - reproducible, not secret
    gpu = PRESETS[random.choice(sorted(PRESETS))]
    floor_s = 1e-6 * (gpu.weights_us + gpu.head_us + gpu.host_step_us)
    prompt, output = _between(random, 200, 3000), _between(random, 60, 700)
    document = {
        "flags": ["--sim-start-s", "15"],
        "hardware": gpu.name,
        "prompt": [prompt, 0.6, 16, 5000],
        "output": [output, 0.6, 4, 2000],
        "slo": {
            "ttft": [f"{1000 * _between(random, 20, 200) * floor_s:.0f}ms", 0.95],
            "itl": [f"{1000 * _between(random, 1.5, 4) * floor_s:.0f}ms", 0.95],
        },
        "load": [[SECONDS, 1.0, random.choice((1.0, 1.5, 2.0))]],
        "truth": {
            "jitter": 0.06,
            "hiccups": [60, 0.1],
            "prefill_attention_us_times": random.uniform(1, 4),
            **{f"{name}_times": random.lognormvariate(0, OFF) for name in TIMES},
        },
    }
    world = parse_world(f"flat-{number}", document)
    rate = _between(random, *RATES) * carried_rps(world, gpu)
    return replace(world, load=(replace(world.load[0], rate=rate),))


def carried_rps(world: World, gpu: Hardware) -> float:
    """Find the rate by the law of the GPU's coefficients, with vLLM's default flags."""
    law = StepLaw(
        step_us=gpu.weights_us + gpu.head_us + gpu.host_step_us,
        knee=max(0.0, gpu.weights_us - gpu.tokens_from_us) / gpu.token_us,
        token_us=gpu.token_us,
        sequence_us=gpu.host_sequence_us,
        kv_read_us=gpu.kv_read_us,
        attention_us=gpu.prefill_attention_us,
    )
    flags = flags_of(world, configured(world))
    cache = VirtualServer("probe", flags, now_s=0.0, unix_s=0.0).scheduler.cache
    limits = EngineLimits(
        kv_blocks=cache.blocks,
        block_size=cache.block_size,
        max_num_seqs=flags.limits.max_num_seqs,
        max_num_batched_tokens=flags.limits.max_num_batched_tokens,
    )
    goals = Goals(
        ttft_s=world.slo.ttft.under_s if world.slo.ttft else None,
        itl_s=world.slo.itl.under_s if world.slo.itl else None,
    )
    requests = [arrival.request for arrival in Clients(world, 0).until(PROBE_S)]
    return find_headroom(trace_of(world, requests, 0.0), law, limits, goals).rate_per_s or 0.1


def run_world(world: World) -> Row:
    """`canaries`: of a run with the rules alone (`off`), and with the model beside them (`on`)."""
    own, highest = _sweep(world)
    row: Row = {
        "world": world.name,
        "flags": " ".join(world.flags),
        "rate": round(world.load[0].rate, 2),
        "default": round(own, 3),
        "best": round(highest, 3),
        "flat": highest - own <= NO_CURE,
    }
    if not row["flat"]:
        return row
    row["has_law"] = learn_before(world, world.seed)[1].is_accepted
    for use in USES:
        run = play(replace(world, model=use), world.seed)
        rules = {suggestion.id: suggestion.rule for suggestion in run.suggestions}
        row[use] = [
            {
                "rule": rules.get(rollout.suggestion),
                "to": dict(rollout.to),
                "began_s": rollout.began_s,
                "outcome": rollout.outcome,
            }
            for rollout in run.rollouts
        ]
    return row


def _sweep(world: World) -> tuple[float, float]:
    """Return the goodput of the default and of the best setting; the default's where it is nearly all."""
    half = replace(world, load=(replace(world.load[0], seconds=SECONDS / 2),))
    base, seeds = configured(world), SEEDS[:1]
    own = goodput(half, base, seeds).whole
    if own >= ENOUGH:
        return own, own
    return own, max(own, *(goodput(half, {**base, **change}, seeds).whole for change in SWEEP))


def summarise(rows: Sequence[Row]) -> Row:
    flat = [row for row in rows if row["flat"]]
    missed = [row for row in flat if row["default"] < 0.95]  # noqa: PLR2004 - the share of the objectives
    return {
        "worlds": len(rows),
        "flat": len(flat),
        "with_a_law": sum(row["has_law"] for row in flat),
        "objective_missed": len(missed),
        **{f"without_a_canary_{use}": sum(not row[use] for row in flat) for use in USES},
        **{f"missed_without_a_canary_{use}": sum(not row[use] for row in missed) for use in USES},
    }


def _between(random: Random, low: float, high: float) -> float:
    """Draw from a log-uniform distribution."""
    return exp(random.uniform(log(low), log(high)))


def main() -> None:
    parser = new_parser("bench.loop.flat", __doc__, "flat.json")
    parser.add_argument("--worlds", type=int, default=60)
    parser.add_argument("--first", type=int, default=1, help="number of the first world")
    parser.add_argument(
        "--budget-s", type=float, default=1e9, help="seconds of CPU after which no world begins"
    )
    options = parser.parse_args()
    rows: list[Row] = []
    for number in range(options.first, options.first + options.worlds):
        if process_time() > options.budget_s:
            break
        rows.append(run_world(draw_world(number)))
        print(json.dumps(rows[-1]), flush=True)
        write(options.json, {"figures": summarise(rows), "worlds": rows})
    print(json.dumps(summarise(rows), indent=1))


if __name__ == "__main__":
    main()
