"""What a trial measured: latencies and the share of requests within the objectives."""

from collections.abc import Mapping, Sequence

from flettner.performance_model.outcome import Goals, quantile
from flettner.tools.tuning.replay import Served

_SHARES = (10, 50, 90, 99)


def summarise(served: Sequence[Served], goals: Goals) -> Mapping[str, float]:
    """Return seconds and shares, by the names of `flettner.performance_model.outcome.measure`."""
    done = [one for one in served if not one.why]
    good = sum(is_good(one, goals) for one in served)
    seconds = max((one.arrival_s + one.late_s + one.e2e_s for one in done), default=0.0)
    found = {
        "attainment": good / max(1, len(served)),
        "failed_share": 1 - len(done) / max(1, len(served)),
        "tokens_per_s": sum(one.output_tokens for one in done) / max(1e-9, seconds),
        "late_p99_s": quantile(sorted(one.late_s for one in served), 0.99) if served else 0.0,
    }
    if served and served[-1].arrival_s:
        found["goodput_per_s"] = good / served[-1].arrival_s
    series = {
        "ttft": sorted(one.ttft_s for one in done),
        "itl": sorted(one.itl_s for one in done if one.output_tokens > 1),
        "e2e": sorted(one.e2e_s for one in done),
    }
    for name, values in series.items():
        if values:
            found[f"{name}_mean_s"] = sum(values) / len(values)
            found.update({f"{name}_p{share}_s": quantile(values, share / 100) for share in _SHARES})
    return found


def is_good(one: Served, goals: Goals) -> bool:
    return not one.why and all(
        limit is None or value <= limit
        for limit, value in ((goals.ttft_s, one.ttft_s), (goals.itl_s, one.itl_s), (goals.e2e_s, one.e2e_s))
    )
