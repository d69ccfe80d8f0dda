"""Options and result files of the benchmarks."""

import argparse
import json
import platform
from collections.abc import Mapping
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def new_parser(program: str, about: str | None, results: str) -> argparse.ArgumentParser:
    """`program`: as in `python -m program`. `results`: the file below RESULTS that `--json` defaults to."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    parser.add_argument("--json", type=Path, default=RESULTS / results, help="file for the results")
    return parser


def write(path: Path, results: Mapping[str, object]) -> None:
    """Write the results as JSON, with the version of Python that measured them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {**results, "python": platform.python_version()}
    path.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
