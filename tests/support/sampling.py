"""How much of a large space of cases a run of the tests covers.

`make test` and `.ci/run` cover a sample, the same in each run. With FLETTNER_TESTS=all, which `make test-all`
sets, the tests cover each case and each example.
"""

import os
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

FULL = os.environ.get("FLETTNER_TESTS") == "all"
Case = TypeVar("Case")


def sampled(cases: Iterable[Case], every: int) -> list[Case]:
    """Return each `every`-th case, beginning with the first, or all cases in a full run."""
    return list(islice(cases, 0, None, 1 if FULL else every))


def examples(full: int) -> int:
    """Return how many examples hypothesis generates where a full run takes `full`."""
    return full if FULL else max(2, full // 8)
