"""python -m bench.prediction [--seed N]: speed, exactness, capacity against the simulated vLLM; four minutes.

Prints JSON and writes it to bench/results/prediction.json.
"""

import json
from dataclasses import asdict

from bench.prediction.capacity import compare
from bench.prediction.exactness import run_all
from bench.prediction.speed import measure_speed
from bench.results import new_parser, write


def main() -> None:
    parser = new_parser("bench.prediction", __doc__, "prediction.json")
    parser.add_argument("--seed", type=int, default=1, help="of the truths and of their traffic")
    args = parser.parse_args()
    capacity = [{**asdict(each), "is_inside": each.is_inside} for each in compare(args.seed)]
    result = {"speed": measure_speed(), "worlds": run_all(args.seed), "capacity": capacity}
    write(args.json, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
