"""python -m bench.tuning [--seeds N] [--searches N] [--worlds TEXT] [--starts NAMES] [--model-only]

1 to 2 minutes of CPU for a world. Prints the table; writes all rows to bench/results/tuning.json after each.
With --resume, the worlds whose rows are there already are not played again.
"""

import json
from itertools import product
from time import process_time

from bench.prediction.truth import LOADS
from bench.results import new_parser, write
from bench.tuning.score import play_all, summarise
from bench.tuning.world import STARTS, build_world

GPUS = ("4090-8b", "t4-8b-awq", "h100-8b")
INTENSITIES = (1.25, 0.7)  # of what the default carries


def main() -> None:
    parser = new_parser("bench.tuning", __doc__, "tuning.json")
    parser.add_argument("--seeds", type=int, default=20, help="truths of each world")
    parser.add_argument("--searches", type=int, default=5, help="runs of each search with random numbers")
    parser.add_argument("--worlds", default="", help="only those whose name has this text")
    parser.add_argument("--gpus", default=",".join(GPUS), help="with commas")
    parser.add_argument("--starts", default=",".join(STARTS), help="settings to begin from, with commas")
    parser.add_argument("--model-only", action="store_true", help="without the other searches")
    parser.add_argument(
        "--budget-s", type=float, default=1e9, help="seconds of CPU after which no world begins"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the rows of --json")
    args = parser.parse_args()
    rows = json.loads(args.json.read_text())["rows"] if args.resume and args.json.exists() else []
    played = {(row["world"], row["seed"]) for row in rows}
    for seed, intensity, load, gpu in product(
        range(1, args.seeds + 1), INTENSITIES, LOADS, args.gpus.split(",")
    ):
        name = f"{gpu} {load.name} x{intensity:g}"
        if args.worlds not in name or (name, seed) in played:
            continue
        if (before := process_time()) > args.budget_s:
            break
        world = build_world(gpu, load, intensity, seed)
        rows += play_all(world, args.searches, starts=args.starts.split(","), blind=not args.model_only)
        print(f"{world.name}, seed {seed}: {process_time() - before:.0f} s of CPU", flush=True)
        write(args.json, {"seeds": args.seeds, "peers": summarise(rows), "rows": rows})
    print(json.dumps(summarise(rows), indent=1))


if __name__ == "__main__":
    main()
