"""What the model advises where no other setting is better, and where only more servers help.

python -m bench.prediction.advised [--seeds 1,2] [--kind flat|servers] [--gpus 4090-8b,…]

A world is flat where the default serves as much as the best of GRID, within FLAT: no change is right there.
In an overload no setting of GRID meets the objectives: the number of servers is right within 1 of the least
number that meets them on later traffic of the same kind, each request at a server drawn by chance.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from random import Random
from typing import Any, Literal

from bench.prediction.truth import GPUS, LOADS, TrueServer, case_of
from bench.tuning.pages import windows_of_pages
from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.model_search import ModelSearchResult
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.model_search import ModelSearchRequest, search_settings
from flettner.agent.prediction.step_rows import thin
from flettner.performance_model.acceptance import check_ahead
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.hardware_prior import fit_with_prior
from flettner.performance_model.outcome import Goals
from flettner.performance_model.packed_trace import pack
from flettner.performance_model.trace import TraceRequest

GRID = tuple(product((16, 64, 256), (512, 2048, 8192)))
FLAT = 0.02
INTENSITY: dict[str, tuple[float, ...]] = {"flat": (0.4, 0.7, 0.9), "servers": (2.0, 4.0)}
"""Times the rate that the default carries."""
SECONDS, LEAST_REQUESTS = 600.0, 200
SHARE, MOST_ROWS, DRAWS, SCRAPES_S = 0.95, 400, 8, 3.0
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Kind = Literal["flat", "servers"]


def run_world(server: TrueServer, kind: Kind, intensity: float, *, logged: bool) -> dict[str, Any]:
    rate = intensity * server.carried_rate
    seconds = max(SECONDS, LEAST_REQUESTS / rate)
    learned = learn(server, server.traffic(rate, seconds, 2), logged=logged)
    later = server.traffic(rate, seconds, 3)
    result = search_settings(ModelSearchRequest(learned=learned, slo=slo_of(server.goals), at=NOON))
    row = {
        "kind": kind,
        "gpu": server.gpu_name,
        "load": server.load.name,
        "intensity": intensity,
        "seed": server.seed,
        "logged": logged,
    }
    if result is None:
        return {**row, "result": None}
    shares = [served_share(later, server, server.with_limits(*point)) for point in GRID]
    figures = {
        **row,
        "own": round(shares[GRID.index((256, 2048))], 4),
        "best": round(max(shares), 4),
        "advised": dict(result.best.to) if result.best else None,
    }
    if kind == "flat":
        return figures
    return {**figures, "servers": result.servers, "needed": needed_servers(later, server, result)}


def learn(server: TrueServer, trace: Sequence[TraceRequest], *, logged: bool) -> LearnedModel:
    """Learn as a daemon does in ten minutes. `logged`: from the iteration log, else pages of /metrics."""
    default = server.default
    recording, case = server.run(trace, default, 0), case_of(server.gpu_name, default)
    steps = recording.timed_windows(default)
    rows = [row for _, row in steps] if logged else windows_of_pages(recording, default, SCRAPES_S)
    return LearnedModel(
        target="w",
        server="w-r0",
        config=case,
        fitted_at=NOON,
        trace=pack(trace),
        counts_from="records",
        kv_tokens=default.kv_tokens,
        law=fit_with_prior(
            case, thin(rows, MOST_ROWS), kind="steps" if logged else "histograms", draws=DRAWS
        ),
        law_source="iteration log" if logged else "histograms",
        acceptance=check_ahead(trace, recording.served(), steps, default),
    )


def needed_servers(
    trace: Sequence[TraceRequest], server: TrueServer, result: ModelSearchResult
) -> int | None:
    """Find the number with the best change of one server; None: twice as many as advised do not help."""
    change = result.best.to if result.best else {}
    knobs = {knob: value for knob, value in change.items() if hasattr(server.default, knob)}
    limits = replace(server.default, **knobs)  # type: ignore[arg-type]

    def holds(count: int) -> bool:
        random = Random(f"servers:{count}:{server.seed}")  # noqa: S311 - statistics, not cryptography
        places = [random.randrange(count) for _ in trace]
        met = 0.0
        for number in range(count):
            part = [request for request, place in zip(trace, places, strict=True) if place == number]
            met += served_share(part, server, limits) * len(part) if part else 0.0
        return met >= SHARE * len(trace)

    start = result.servers or 2
    if holds(start):
        while start > 1 and holds(start - 1):
            start -= 1
        return start
    return next((count for count in range(start + 1, 2 * start + 2) if holds(count)), None)


def served_share(trace: Sequence[TraceRequest], server: TrueServer, limits: EngineLimits) -> float:
    return sum(server.run(trace, limits, 4).good(server.goals)) / len(trace)


def slo_of(goals: Goals) -> Slo:
    return Slo(
        ttft=Objective(under_s=goals.ttft_s or 0.0, share=SHARE),
        itl=Objective(under_s=goals.itl_s or 0.0, share=SHARE),
    )


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return shares of the worlds that are flat, or in which no setting is enough."""
    played = [row for row in rows if row.get("own") is not None]
    flat = [row for row in played if row["kind"] == "flat" and row["own"] >= row["best"] - FLAT]
    short = [row for row in played if row["kind"] == "servers" and row["best"] < SHARE]
    near = [
        row for row in short if row["needed"] and row["servers"] and abs(row["needed"] - row["servers"]) <= 1
    ]
    return {
        "flat": len(flat),
        "flat_without_a_change": sum(row["advised"] is None for row in flat),
        "only_servers_help": len(short),
        "says_so": sum((row["servers"] or 0) > 1 for row in short),
        "within_one": len(near),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--kind", choices=tuple(INTENSITY), nargs="*", default=tuple(INTENSITY))
    parser.add_argument("--gpus", default=",".join(GPUS))
    parser.add_argument("--histograms", action="store_true", help="the law from /metrics alone")
    args = parser.parse_args()
    rows = []
    for seed, kind, gpu in product(map(int, args.seeds.split(",")), args.kind, args.gpus.split(",")):
        for load, intensity in product(LOADS, INTENSITY[kind]):
            server = TrueServer(gpu, load, seed)
            rows.append(run_world(server, kind, intensity, logged=not args.histograms))
            print(json.dumps(rows[-1]), flush=True)
    print(json.dumps(summarise(rows)))


if __name__ == "__main__":
    main()
