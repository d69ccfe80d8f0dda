"""Predict 20 settings of real vLLM on the CPU from traffic at the default, and measure each of them.

    python -m bench.real_sweep [--minutes 10] [--slice-s 35] [--settings 20] [--rate N]

25 minutes, on a machine with nothing else to do. The law is fitted to the iteration log of that traffic, as
the daemon does, and once more corrected by what clients measured, as `trimtab tune` does. The objectives are
what three quarters of the requests at the default stay below. Each setting then serves the first seconds of
the same traffic again, in random order. Prints the figures beside their goals and writes all to
bench/results/real_sweep.json.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from math import log
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from agent.tuning.calibration import calibrate
from agent.tuning.measured import summarise
from agent.tuning.model_search import ModelSearch, forecast_all
from agent.tuning.replay import Served, replay
from agent.tuning.searches import Point, Tried
from agent.tuning.session import TuningPlan
from agent.tuning.space import Space
from bench.prediction.exactness import spearman
from bench.real_sweep.server import BUDGET, SLOTS, RealServer, running
from performance_model.engine import Engine
from performance_model.engine_limits import EngineLimits
from performance_model.fit import fit_law
from performance_model.iteration_log import StepRecord, unlogged_s
from performance_model.outcome import Goals, measure, quantile
from performance_model.prediction import find_headroom
from performance_model.step_law import UncertainLaw
from performance_model.trace import Trace, TraceRequest
from performance_model.work_windows import windows_of_steps
from vllm_facts.shell_command.serve_command import ServeCommand

SEQS, BUDGETS = (SLOTS, 32, 16, 8, 4), (BUDGET, 512, 256, 128)
PAIRS = tuple(product(SEQS, BUDGETS))
PROMPT, OUTPUT, SIGMA = (150, 1200), (40, 200), 0.7  # tokens: median and most
FIRST_S, FIRST_RATE = 30.0, 1.0  # a first load, that tells what the machine carries
LOAD, WAIT_S = 0.7, 1.0  # of the rate at which the engine alone keeps the TTFT below WAIT_S
MOST_HALVINGS = 6  # of that rate
USUAL = 0.75  # of the requests of the default meet each objective
LEAST_SPEARMAN, MOST_ERROR, MOST_REGRET = 0.7, 0.2, 0.05  # goals of the comparison
RESULTS = Path(__file__).parents[1] / "results" / "real_sweep.json"
Row = dict[str, Any]
Pair = tuple[int, int]  # sequences, token budget


def draw_traffic(rate: float, seconds: float, seed: int) -> Trace:
    random, at_s, made = Random(f"real:{seed}"), 0.0, []  # noqa: S311 - reproducible, not secret
    while (at_s := at_s + random.expovariate(rate)) < seconds:
        prompt, output = (
            int(min(most, max(4, random.lognormvariate(log(middle), SIGMA))))
            for middle, most in (PROMPT, OUTPUT)
        )
        made.append(TraceRequest(arrival_s=at_s, prompt_tokens=prompt, output_tokens=output))
    return tuple(made)


async def sweep(options: argparse.Namespace) -> Row:
    async with running() as server:
        limits = await server.limits()
        rate = options.rate or await find_rate(server, limits)
        trace = draw_traffic(rate, 60 * options.minutes, seed=1)
        known = len(await server.steps())
        served = await replay(server.url, trace)
        steps = (await server.steps())[known:]
        goals = usual_latencies(served)
        fitted = fit(steps, limits)
        print(f"{rate:.2f} requests/s; {fitted.source}: {fitted.law}", flush=True)
        plan = TuningPlan(
            command=ServeCommand(argv=("vllm", "serve")),
            trace=trace,
            goals=goals,
            out=Path(),
            budget_s=0.0,
            logs_steps=True,
        )
        part = tuple(one for one in trace if one.arrival_s < options.slice_s)
        rows = [await measure_setting(server, pair, part, goals) for pair in ordered(options.settings)]
    return {
        "rate": round(rate, 2),
        "requests": len(trace),
        "of_a_setting": len(part),
        "steps": len(steps),
        "goals": {"ttft_s": goals.ttft_s, "itl_s": goals.itl_s},
        "measured": rows,
        "iteration log": compare(rows, part, fitted, limits, goals),
        "corrected": compare(rows, part, *_corrected(fitted, plan, limits, served)),
    }


def ordered(most: int) -> list[Pair]:
    """The default first and last, to see the noise; between them the others, or some, in random order."""
    random = Random("order")  # noqa: S311 - reproducible, not secret
    return [PAIRS[0], *random.sample(PAIRS[1:], min(most, len(PAIRS)) - 1), PAIRS[0]]


async def find_rate(server: RealServer, limits: EngineLimits) -> float:
    """What the engine carries by the law of a light load, halved until requests begin within WAIT_S.

    Small batches do not tell what a large one costs, nor the log what the API server takes.
    """
    trace = draw_traffic(FIRST_RATE, FIRST_S, seed=0)
    await replay(server.url, trace, series="warm-up")
    known = len(await server.steps())
    await replay(server.url, trace)
    law = fit((await server.steps())[known:], limits).law
    rate = LOAD * (find_headroom(trace, law, limits, Goals(ttft_s=WAIT_S)).rate_per_s or FIRST_RATE)
    for attempt in range(MOST_HALVINGS):
        tried = await replay(server.url, draw_traffic(rate, FIRST_S, seed=0), series=f"rate {attempt}")
        ttft_s = usual_latencies(tried).ttft_s
        print(f"{rate:.2f} requests/s: TTFT {ttft_s:.2f} s ({USUAL:.0%})", flush=True)
        if ttft_s is not None and ttft_s <= WAIT_S:
            break
        rate /= 2
    return rate


def fit(steps: Sequence[StepRecord], limits: EngineLimits) -> UncertainLaw:
    missing_s = unlogged_s(steps)
    windows = windows_of_steps(steps, limits.kv_tokens)
    rows = [replace(one, seconds=one.seconds + missing_s * one.steps) for one in windows]
    return fit_law(rows, draws=0, source=f"iteration log, {1e6 * missing_s:.0f} us of a step by its clock")


def usual_latencies(served: Sequence[Served]) -> Goals:
    """What the share USUAL of the requests stayed below."""
    done = [one for one in served if not one.why]
    ttft, itl = sorted(one.ttft_s for one in done), sorted(one.itl_s for one in done if one.output_tokens > 1)
    return Goals(ttft_s=quantile(ttft, USUAL), itl_s=quantile(itl, USUAL))


def _corrected(
    law: UncertainLaw, plan: TuningPlan, limits: EngineLimits, served: Sequence[Served]
) -> tuple[UncertainLaw, EngineLimits, Goals]:
    corrected, goals = calibrate(law, plan, limits, summarise(served, plan.goals))
    return corrected, limits, goals


async def measure_setting(server: RealServer, pair: Pair, trace: Trace, goals: Goals) -> Row:
    seqs, budget = pair
    await server.set_limits({"max_num_seqs": seqs, "max_num_scheduled_tokens": budget})
    served = await replay(server.url, trace, series=f"{pair}")
    found: Row = {"setting": pair, **summarise(served, goals)}
    print(f"{pair}: {found['attainment']:.1%}, {1000 * found['itl_mean_s']:.2f} ms", flush=True)
    return found


def compare(rows: Sequence[Row], trace: Trace, law: UncertainLaw, limits: EngineLimits, goals: Goals) -> Row:
    """`goals`: as far as the engine is concerned. The last row is the default again."""
    *tried, again = rows
    pairs: list[Pair] = [row["setting"] for row in tried]
    bounds = [with_pair(limits, pair) for pair in pairs]
    predicted = [measure(Engine(trace, law.law, one).run(), goals) for one in bounds]
    truth = [row["attainment"] for row in tried]
    errors = [
        abs(one["itl_mean_s"] / row["itl_mean_s"] - 1) for one, row in zip(predicted, tried, strict=True)
    ]
    chosen = pairs.index(_change(pairs, bounds, trace, law, goals))
    return {
        "law": law.source,
        "coefficients": asdict(law.law),
        "spearman": spearman(truth, [one["attainment"] for one in predicted]),
        "itl_error_median": round(median(errors), 3),
        "itl_error_most": round(max(errors), 3),
        "change": pairs[chosen],
        "after_the_change": truth[chosen],
        "best": max(truth),
        "best_setting": pairs[truth.index(max(truth))],
        "default": truth[0],
        "default_again": again["attainment"],
        "predicted": [
            {"setting": pair, "attainment": one["attainment"], "itl_mean_s": one["itl_mean_s"]}
            for pair, one in zip(pairs, predicted, strict=True)
        ],
    }


def describe(found: Row) -> str:
    """The figures of one comparison, each beside its goal."""
    rank, error = found["spearman"], found["itl_error_median"]
    regret = found["best"] - found["after_the_change"]
    figures = (
        (
            "rank correlation of the requests within the objectives",
            "unknown: all settings are alike" if rank is None else f"{rank:.2f}",
            f"at least {LEAST_SPEARMAN}",
            rank is not None and rank >= LEAST_SPEARMAN,
        ),
        (
            "time between tokens, median error",
            f"{error:.0%}",
            f"at most {MOST_ERROR:.0%}",
            error <= MOST_ERROR,
        ),
        (
            f"change {found['change']} below the best setting {found['best_setting']}",
            f"{100 * regret:.1f} points",
            f"at most {100 * MOST_REGRET:.0f}",
            regret <= MOST_REGRET,
        ),
    )
    lines = [
        f"{name}: {value} (goal: {goal}): {'met' if is_met else 'missed'}"
        for name, value, goal, is_met in figures
    ]
    noise = abs(found["default"] - found["default_again"])
    return "\n  ".join(
        [found["law"], *lines, f"the default, measured twice, differs by {100 * noise:.1f} points"]
    )


def _change(
    pairs: Sequence[Pair], bounds: Sequence[EngineLimits], trace: Trace, law: UncertainLaw, goals: Goals
) -> Pair:
    """What `trimtab tune` tries first after the default; the default if nothing promises a gain."""
    points: list[Point] = [{"max_num_seqs": seqs, "max_num_batched_tokens": budget} for seqs, budget in pairs]
    space = Space(points=points, limits=bounds, refused={})
    search = ModelSearch(space=space, forecasts=forecast_all(space, trace, law.law, goals))
    found = search.propose([Tried(point=points[0], goodput=None)])
    return pairs[points.index(found)] if found else pairs[0]


def with_pair(limits: EngineLimits, pair: Pair) -> EngineLimits:
    seqs, budget = pair
    return replace(limits, max_num_active_seqs=seqs, max_num_scheduled_tokens=budget)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.real_sweep", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of traffic at the default")
    parser.add_argument("--slice-s", type=float, default=35.0, help="of that traffic, for each setting")
    parser.add_argument("--settings", type=int, default=len(PAIRS))
    parser.add_argument(
        "--rate", type=float, default=0.0, help="requests/s; default: what the machine carries"
    )
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.json.parent.mkdir(exist_ok=True)
    found = asyncio.run(sweep(options))
    options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name in ("iteration log", "corrected"):
        print(f"{name}: {describe(found[name])}")


if __name__ == "__main__":
    main()
