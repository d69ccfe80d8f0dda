"""python -m bench.prediction [--seed N]: speed, and exactness against the simulated vLLM; two minutes of CPU.

Prints JSON and writes it to bench/results/prediction.json.
"""

import argparse
import json
from pathlib import Path

from bench.prediction.exactness import run_all
from bench.prediction.speed import measure_speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the truths and of their traffic")
    args = parser.parse_args()
    result = {"speed": measure_speed(), "worlds": run_all(args.seed)}
    path = Path(__file__).parents[1] / "results" / "prediction.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
