"""The predicted capacity of a server that the model does not know, beside what the simulated engine carries.

The law is fitted to some minutes of a load below it; the truth is found by bisection of the rate, with later
traffic of the same kind that lasts as long at each rate.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bench.prediction.truth import LOADS, TrueServer
from flettner.performance_model.band import Band
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.fit import fit_law
from flettner.performance_model.prediction import find_capacity
from flettner.performance_model.work_windows import windows_of_steps

SEEN_S, TRUE_S = 900.0, 1800.0  # as long as the daemon records; the truth is of a longer time
SHARES = (0.3, 0.7)  # of the capacity, while the law is learned
CAPS = (8, 32)
EXACT = 0.02
PRESET = "4090-8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Requests per second."""

    name: str
    predicted: Band
    true: float

    @property
    def is_inside(self) -> bool:
        return self.predicted.low <= self.true <= self.predicted.high


def compare(seed: int) -> Iterator[Comparison]:
    server = TrueServer(PRESET, LOADS[0], seed)
    for cap in CAPS:
        limits = server.with_limits(cap, 2048)
        true = find_true_capacity(server, limits, server.carried_rate)
        for share in SHARES if true else ():
            yield Comparison(
                name=f"{PRESET}, {LOADS[0].name}, {cap} sequences, learned at {share:.0%}",
                predicted=predict_capacity(server, limits, share * true),
                true=true,
            )


def predict_capacity(server: TrueServer, limits: EngineLimits, rate: float) -> Band:
    trace = server.traffic(rate, SEEN_S, 2)
    run = server.run(trace, limits, 3)
    law = fit_law(list(windows_of_steps(run.steps, limits.kv_tokens)))
    return find_capacity(trace, law, limits, server.goals) or Band(value=0.0, low=0.0, high=0.0)


def find_true_capacity(server: TrueServer, limits: EngineLimits, start: float) -> float:
    """0 where a 16th of `start` is too much."""

    def holds(rate: float) -> bool:
        good = server.run(server.traffic(rate, TRUE_S, 5), limits, 4).good(server.goals)
        return sum(good) >= server.goals.share * len(good)

    low = start
    while not holds(low):
        low /= 2
        if low < start / 16:
            return 0.0
    high = 2 * low
    while holds(high):
        low, high = high, 2 * high
    while high / low > 1 + EXACT:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
