"""Parallel runs of a function of the run number, on two cores at low priority; the table of a section."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

PROCESSES, NICE = 2, 15
Result = TypeVar("Result")
Row = dict[str, Any]
Table = dict[str, Row]


def tabulate(rows: Iterable[tuple[str, Row]]) -> Table:
    """Print each named row as soon as it is measured."""
    table: Table = {}
    for name, row in rows:
        table[name] = row
        print(f"  {name}: {row}", flush=True)
    return table


class Pool:
    """Yield the results in the order of the runs."""

    def __init__(self) -> None:
        self._executor = ProcessPoolExecutor(PROCESSES, initializer=_behind_all_others)

    def of(self, run: Callable[[int], Result], runs: int) -> list[Result]:
        return list(self._executor.map(run, range(runs), chunksize=max(1, runs // (8 * PROCESSES))))

    def close(self) -> None:
        self._executor.shutdown()


def _behind_all_others() -> None:
    os.nice(max(0, NICE - os.nice(0)))
