"""Hold every change while a GPU throttles: measurements on it are no evidence."""

from collections.abc import Sequence
from dataclasses import dataclass

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Gpu, Reading
from flettner.policies.shared.signals import build_note, check_options

REASONS = {0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown"}
POWER = {0x80: "hardware power brake"}
POWER_CAP = {0x4: "software power cap"}
"""Bits of clocks_event_reasons.active (NVML)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    """Rule T1. While it fires, its precedence holds all other proposals."""

    hot_at_c: float = 80.0
    power_cap_counts: bool = False  # a busy data-centre GPU reaches its power cap by design
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:  # noqa: ARG002  one signature
        throttled = [why for gpu in reading.gpus for why in [self._throttles(gpu)] if why]
        if not throttled or reading.coverage < self.coverage_at_least_ratio:
            return ()
        hottest = max(
            (gpu.temperature_c for gpu in reading.gpus if gpu.temperature_c is not None), default=None
        )
        why = "thermal throttling: " + "; ".join(throttled)
        advice = "every change waits: measurements on a throttling GPU prove nothing; cool the GPU first"
        source = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html"
        count = ("throttled_gpus", float(len(throttled)), "GPUs")
        return (build_note("T1", reading, why, advice, source, count, ("temperature", hottest, "°C")),)

    def _throttles(self, gpu: Gpu) -> str:
        names = REASONS | POWER | (POWER_CAP if self.power_cap_counts else {})
        bits = gpu.throttle_reasons or 0
        reasons = [name for bit, name in names.items() if bits & bit]
        hot = gpu.temperature_c is not None and gpu.temperature_c >= self.hot_at_c
        if not hot and not reasons:
            return ""
        at = "" if gpu.temperature_c is None else f" at {gpu.temperature_c:.0f} °C"
        reported = f", reports {' and '.join(reasons)}" if reasons else f" (from {self.hot_at_c:g} °C)"
        return f"GPU {gpu.index}{at}{reported}"


plugin = Thermal
