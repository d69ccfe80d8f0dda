"""How often the bands of predictions hold what comes, for settings that were never tried.

python -m bench.prediction.coverage [--seeds 1,2] [--gpus 4090-8b,…] [--budget-s N]

The law is fitted to ten minutes of the default setting; a world is a GPU, a load and a rate, and each has
predictions for settings two octaves away and more. `same`: the recorded requests came again, as when a
prediction is compared with a rollout. `later`: other requests of the same kind came. Writes the table and all
predictions to bench/results/coverage.json after each world.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import mean, median
from time import process_time
from typing import Any

from bench.prediction.truth import LOADS, Load, Recording, TrueServer, case_of
from bench.results import new_parser, write
from flettner.agent.prediction.served_load import REPLICATES
from flettner.agent.prediction.step_rows import thin
from flettner.performance_model.acceptance import check_ahead
from flettner.performance_model.hardware_prior import fit_with_prior
from flettner.performance_model.outcome import Goals
from flettner.performance_model.prediction import predict
from flettner.performance_model.step_law import with_error
from flettner.primitives.quantiles import quantile

GPUS = ("4090-8b", "t4-8b-awq", "h100-8b")
SETTINGS = ((16, 2048), (64, 256), (256, 8192))
INTENSITIES = (0.7, 1.25)
SECONDS, LEAST_REQUESTS = 600.0, 150
MOST_ROWS, DRAWS = 400, 8
Row = dict[str, Any]


def run_world(gpu_name: str, load: Load, intensity: float, seed: int) -> Iterator[Row]:
    server = TrueServer(gpu_name, load, seed)
    default, goals, rate = server.default, server.goals, intensity * server.carried_rate
    seconds = max(SECONDS, LEAST_REQUESTS / rate)
    trace, later = server.traffic(rate, seconds, 2), server.traffic(rate, seconds, 5)
    recording = server.run(trace, default, 0)
    steps = recording.timed_windows(default)
    rows = thin([row for _, row in steps], MOST_ROWS)
    fitted = fit_with_prior(case_of(gpu_name, default), rows, kind="steps", draws=DRAWS)
    some = steps[:: max(1, len(steps) // MOST_ROWS)]
    errors = check_ahead(trace, recording.served(), some, default)
    law = with_error(fitted, errors.itl, errors.ttft)
    for seqs, budget in SETTINGS:
        limits = server.with_limits(seqs, budget)
        predicted = {
            kind: predict(trace, law, limits, goals, replicates=REPLICATES, is_load_known=kind == "same")
            for kind in ("same", "later")
        }
        came = {
            "same": numbers(server.run(trace, limits, 4), goals),
            "later": numbers(server.run(later, limits, 6), goals),
        }
        for name, kind in product(came["same"], came):
            band, value = predicted[kind][name], came[kind][name]
            yield {
                "world": f"{gpu_name} {load.name} x{intensity:g} {seed}",
                "number": name,
                "came": kind,
                "setting": f"{seqs} {budget}",
                "value": value,
                "low": band.low,
                "high": band.high,
                "inside": band.low <= value <= band.high,
                "pinned": name == "attainment" and value in {0.0, 1.0},
                "error": value / max(band.value, 1e-9) - 1,
                "width": (band.high - band.low) / max(band.value, 1e-9),
            }


def numbers(recording: Recording, goals: Goals) -> Mapping[str, float]:
    served = recording.served()
    waits, gaps = (
        sorted(request.ttft_s for request in served),
        sorted(request.itl_s for request in served if request.itl_s > 0),
    )
    return {
        "attainment": mean(recording.good(goals)),
        "ttft_p90_s": quantile(waits, 0.9),
        "ttft_p99_s": quantile(waits, 0.99),
        "itl_mean_s": mean(gaps),
        "itl_p90_s": quantile(gaps, 0.9),
        "e2e_mean_s": mean((request.last_at or 0.0) - request.arrived_at for request in recording.requests),
    }


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Return the share inside, the median error, and the median width of the band, for each number.

    `pinned`: predictions where all requests, or none, were within the objectives; `inside_free`: the share
    inside of all other predictions. A band that has the whole of such an atom holds more than it promises.
    """
    table = []
    for number, kind in dict.fromkeys((row["number"], row["came"]) for row in rows):
        own = [row for row in rows if (row["number"], row["came"]) == (number, kind)]
        table.append(
            {
                "number": number,
                "came": kind,
                "worlds": len({row["world"] for row in own}),
                "predictions": len(own),
                "inside": round(mean(row["inside"] for row in own), 3),
                "pinned": sum(row["pinned"] for row in own),
                "inside_free": _inside([row for row in own if not row["pinned"]]),
                "error": round(median(abs(row["error"]) for row in own), 3),
                "width": round(median(row["width"] for row in own), 3),
            }
        )
    return table


def _inside(rows: Sequence[Row]) -> float | None:
    return round(mean(row["inside"] for row in rows), 3) if rows else None


def main() -> None:
    parser = new_parser("bench.prediction.coverage", __doc__, "coverage.json")
    parser.add_argument("--seeds", default="1", help="of the truths and of their traffic, with commas")
    parser.add_argument("--gpus", default=",".join(GPUS))
    parser.add_argument(
        "--budget-s", type=float, default=1e9, help="seconds of CPU after which no world begins"
    )
    args = parser.parse_args()
    rows: list[Row] = []
    for seed, intensity, load, gpu in product(
        args.seeds.split(","), INTENSITIES, LOADS, args.gpus.split(",")
    ):
        if process_time() > args.budget_s:
            break
        rows += run_world(gpu, load, intensity, int(seed))
        write(args.json, {"table": summarise(rows), "rows": rows})
    for row in summarise(rows):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
