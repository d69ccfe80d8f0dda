"""Compare the throughput of flettner's scheduler class with that of vLLM's own, and the outputs.

One engine generates the requests of each seed several times, by turns with the class and without it: two
engines differ by some percent, whatever their scheduler. What is compared is the least CPU time: other
programs on the machine only add to it. The model is tiny, so the scheduler's part of a step is as large as
it gets. The class alone is also timed, around a scheduler that does nothing.
"""

import json
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from bench.results import new_parser, write
from tests.support.scheduler_engine import Engine, start

REQUESTS, TOKENS, SLOTS = 32, 64, 16
ROUNDS, WARM_UP = 5, 2
Z95 = 1.96
GOAL_PERCENT = 1.0  # the most CPU time more of the engine that the class may take

Answer = dict[str, Any]


def main() -> int:
    parser = new_parser("bench.hot_scheduler", __doc__, "hot_scheduler.json")
    parser.add_argument("--seeds", type=int, default=20, help="sets of requests")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, start(Path(folder)) as engine:
        print(engine.about, flush=True)
        report = compare(engine, options.seeds)
    report["about"] = {**engine.about, "processor": platform.processor()}
    write(options.json, report)
    print(json.dumps({name: value for name, value in report.items() if name != "ratios"}, indent=2))
    print(compare_with_goal(report["slower, cpu_s, percent"]))
    return 0


def compare(engine: Engine, seeds: int) -> dict[str, Any]:
    """Ratios above 1: flettner's scheduler takes longer."""
    ratios: dict[str, list[float]] = {"cpu_s": [], "wall_s": []}
    per_step, different = list[float](), 0
    for seed in range(-WARM_UP, seeds):
        wanted = {"seed": 1000 + seed, "requests": REQUESTS, "tokens": TOKENS, "temperature": seed % 2}
        answers = [run_round(engine, wanted, first=number % 2) for number in range(ROUNDS)]
        different += sum(before["outputs"] != after["outputs"] for before, after in answers)
        if seed < 0:
            continue
        for measure, values in ratios.items():
            values.append(_least(measure, answers, 1) / _least(measure, answers, 0))
        per_step.append(_least("cpu_s", answers, 0) / (REQUESTS * TOKENS / SLOTS))
    step_us = 1e6 * median(per_step)
    return {
        "seeds": seeds,
        "runs of each seed and scheduler": ROUNDS,
        "requests of a run": REQUESTS,
        "tokens of a request": TOKENS,
        "runs with other outputs": different,
        "CPU of a step, us": round(step_us, 1),
        "of the class, percent": round(100 * engine.about["class_us"] / step_us, 4),
        **{f"slower, {measure}, percent": band(values) for measure, values in ratios.items()},
        "ratios": {measure: [round(value, 4) for value in values] for measure, values in ratios.items()},
    }


def run_round(engine: Engine, wanted: Mapping[str, float], first: int) -> tuple[Answer, Answer]:
    """Return the answers without and with flettner's class, of which `first` (0 or 1) runs first."""
    answers = {hot: engine.ask(**wanted, hot=hot) for hot in (first, 1 - first)}
    return answers[0], answers[1]


def _least(measure: str, answers: Sequence[tuple[Answer, Answer]], which: int) -> float:
    return min(float(both[which][measure]) for both in answers)


def band(ratios: Sequence[float]) -> dict[str, float]:
    """Return the geometric mean with its 95 % band, and the median, in percent above 1."""
    logs = [log(ratio) for ratio in ratios]
    half = Z95 * stdev(logs) / sqrt(len(logs))
    ends = {"mean": mean(logs), "from": mean(logs) - half, "to": mean(logs) + half, "median": median(logs)}
    return {name: round(100 * (exp(value) - 1), 2) for name, value in ends.items()}


def compare_with_goal(slower: Mapping[str, float]) -> str:
    """Return a sentence about the band of `band`, which is wide on a busy machine."""
    if slower["to"] <= GOAL_PERCENT:
        verdict = "met"
    elif slower["from"] > GOAL_PERCENT:
        verdict = "missed"
    else:
        verdict = "open: repeat it on a quiet machine, or with more --seeds"
    share = f"{slower['mean']:+.1f} % of CPU time (95 % band {slower['from']:+.1f} to {slower['to']:+.1f} %)"
    return f"with the class: {share}; goal: at most {GOAL_PERCENT:+.0f} %, {verdict}"


if __name__ == "__main__":
    sys.exit(main())
