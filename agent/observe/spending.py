"""What a target spent over the last minutes: GPUs, power, tokens and good requests. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from flettner.agent.domain.cost import Cost, GpuRates, measure_cost
from flettner.agent.domain.model import Server
from flettner.agent.domain.reading import Reading
from flettner.agent.observe.minute_rows import MINUTE_S, MinuteRow
from flettner.primitives.quantiles import mean
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import layout

WINDOW_MINUTES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    rates: GpuRates = field(default_factory=GpuRates)
    cost: Cost | None = None  # None without a price and a power


def measure_spending(
    minutes: Sequence[MinuteRow],
    now_s: float,
    servers: Sequence[Server],
    reading: Reading | None,
    per_hour: float | None,
) -> Spending:
    """`servers`: that run. `minutes`: the last WINDOW_MINUTES at least. `per_hour`: price of a GPU."""
    rows, seen = recent_rows(minutes, now_s), len(reading.gpus) if reading is not None else 0
    gpus = count_gpus(servers, seen)
    rates = gpu_rates(rows, per_hour, gpus=gpus, seen=seen)
    return Spending(rates=rates, cost=recent_cost(rows, rates, gpus))


def count_gpus(servers: Sequence[Server], seen: int) -> int:
    """GPUs that the servers take by their flags; not more than are `seen`, if any: servers may share one."""
    needed = sum(
        server.replicas * layout(ServeConfig(setting=server.setting, card=None, model=None)).gpus
        for server in servers
    )
    return min(needed, seen) if seen else needed


def recent_rows(minutes: Sequence[MinuteRow], now_s: float) -> list[MinuteRow]:
    """The complete minutes of the window."""
    since_s = now_s - (WINDOW_MINUTES + 1) * MINUTE_S
    return [row for row in minutes if row.at >= since_s]


def gpu_rates(rows: Sequence[MinuteRow], per_hour: float | None, *, gpus: int, seen: int) -> GpuRates:
    """Price and mean power of a GPU. Where others are seen too, nothing tells which are the target's."""
    power_w = mean(row.power_w for row in rows if row.power_w is not None) if gpus and gpus == seen else None
    return GpuRates(per_hour=per_hour, power_w=None if power_w is None else power_w / gpus)


def recent_cost(rows: Sequence[MinuteRow], rates: GpuRates, gpus: int) -> Cost | None:
    """None without a price and a power."""
    return measure_cost(
        rates,
        gpus,
        tokens_per_s=mean(row.generated_per_s for row in rows if row.generated_per_s is not None),
        good_per_s=mean(row.goodput_rps for row in rows if row.goodput_rps is not None),
    )
