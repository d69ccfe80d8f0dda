"""Speed of the simulation relative to the engine: `python -m bench.simulator_speed [--seconds S]`.

A KV-bound RTX 4090 under ordinary chat traffic, from request to last token; prints one line of JSON.
"""

import json
from time import process_time

from bench.results import new_parser, write
from flettner.primitives.quantiles import quantile
from flettner.simulator.hardware import PRESETS
from flettner.simulator.kv_cache import KvCache
from flettner.simulator.replay import replay
from flettner.simulator.scheduler import Scheduler, SchedulerLimits, SimulatedRequest
from flettner.simulator.step_time import StepTime
from flettner.simulator.text import draws
from flettner.simulator.workload import gap_s, lengths

BLOCKS = 2588  # reported by vLLM on a 4090 with an 8B model


def requests(seconds: float, rate: float, seed: int) -> list[SimulatedRequest]:
    random = draws(seed, "bench")
    prompt, wanted = lengths("lognormal:500:0.8:16:6000"), lengths("lognormal:200:0.8:4:1500")
    at, made = 0.0, list[SimulatedRequest]()
    while at < seconds:
        at += gap_s(random, rate, 1.0)
        made.append(
            SimulatedRequest(
                name=str(len(made)), prompt=prompt.draw(random), wanted=wanted.draw(random), arrived_at=at
            )
        )
    return made


def main() -> None:
    parser = new_parser("bench.simulator_speed", __doc__, "simulator_speed.json")
    parser.add_argument("--seconds", type=float, default=600.0, help="seconds of simulated traffic")
    parser.add_argument("--rate", type=float, default=2.2, help="requests per second")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    made = requests(options.seconds, options.rate, options.seed)
    scheduler = Scheduler(SchedulerLimits(max_num_seqs=options.max_num_seqs), KvCache(BLOCKS))
    began = process_time()
    run = replay(made, scheduler, StepTime(hardware=PRESETS["4090-8b"]).seconds)
    cpu_s = process_time() - began
    ttft_s = sorted((request.first_at or 0.0) - request.arrived_at for request in made)
    report = {
        "requests": len(made),
        "steps": run.steps,
        "preemptions": scheduler.preemptions,
        "simulated_s": round(run.seconds, 1),
        "cpu_s": round(cpu_s, 2),
        "times_real_time": round(run.seconds / cpu_s),
        "us_per_step": round(cpu_s / run.steps * 1e6, 1),
        "ttft_p50_ms": round(quantile(ttft_s, 0.5) * 1000, 1),
        "ttft_p99_ms": round(quantile(ttft_s, 0.99) * 1000, 1),
    }
    print(json.dumps(report))
    write(options.json, report)


if __name__ == "__main__":
    main()
