"""The cost of a change report: the hour before the rollout and the hour after it, by the minutes kept."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from flettner.agent.domain.cost import GpuRates, measure_cost
from flettner.agent.domain.rollout import Rollout
from flettner.agent.observe.minute_rows import MINUTE_S, MinuteRow
from flettner.agent.runtime.time_series import TimeSeries
from flettner.primitives.quantiles import mean
from flettner.tools.cli.resource_text import format_cost

HOUR_S = 3600


def describe_costs(
    series: Path, rollout: Rollout, gpus: int, gpu_hour: float | None
) -> Sequence[tuple[str, str]]:
    """Return a line for each side of the rollout whose minutes are known: they are kept for a day.

    `gpu_hour`: price of a GPU for an hour; None: only tokens per joule.
    """
    minutes = TimeSeries.load(series).minutes()
    return tuple(_lines(minutes, rollout, gpus, gpu_hour))


def _lines(
    minutes: Sequence[MinuteRow], rollout: Rollout, gpus: int, gpu_hour: float | None
) -> Iterator[tuple[str, str]]:
    start_s, sides = _seconds(rollout.started_at), []
    sides.append(("an hour before", start_s - HOUR_S, start_s))
    if rollout.ended_at is not None:
        end_s = _seconds(rollout.ended_at) + MINUTE_S  # the minute of the end has both
        sides.append(("an hour after", end_s, end_s + HOUR_S))
    for name, since_s, until_s in sides:
        rows = [row for row in minutes if since_s <= row.at <= until_s - MINUTE_S]
        power_w = mean(row.power_w for row in rows if row.power_w is not None)
        rates = GpuRates(per_hour=gpu_hour, power_w=power_w / gpus if power_w and gpus else None)
        cost = measure_cost(
            rates,
            gpus,
            tokens_per_s=mean(row.generated_per_s for row in rows if row.generated_per_s is not None),
            good_per_s=mean(row.goodput_rps for row in rows if row.goodput_rps is not None),
        )
        if rows and cost is not None:
            yield name, format_cost(asdict(cost))


def _seconds(at: datetime) -> float:
    return at.timestamp()
