"""docs/cost.svg: the cost of good requests against their rate, by the model, on the recordings of an H100.

python -m tests.integration.docs.cost_picture > docs/cost.svg
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log10

from flettner.agent.domain.cost import GpuRates, add_cost
from flettner.performance_model.band import Band
from flettner.performance_model.engine_settings import limits_of
from flettner.performance_model.outcome import Goals
from flettner.performance_model.prediction import predict
from flettner.performance_model.resample import scale_rate, window
from flettner.performance_model.trace import Trace, duration_s, mean_rate
from flettner.tools.advisor.measured_law import find_kv_tokens, law_of_log
from tests.unit.performance_model.recorded_gpu import DATA, RecordedSetting, read_sweep

GOALS = Goals(ttft_s=0.5, itl_s=0.05)
GPU_HOUR, NUMBER = 2.5, "cost_per_thousand_good_requests"
SEQS = (8, 64)
RATES = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 25, 30, 32.5, 35, 37.5, 40, 45, 50)
TIMES = 4  # the recording, one after the other, of which each load has as many seconds as were recorded
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 340, 62, 700, 24, 290
LOWEST, HIGHEST = 0.005, 2.0  # of the cost
COLORS = {8: "#b45309", 64: "#0f766e"}
TICKS = ((0.005, "0.005"), (0.01, "0.01"), (0.1, "0.1"), (1.0, "1"))


@dataclass(frozen=True, slots=True)
class Curve:
    seqs: int
    points: Sequence[tuple[float, Band]]
    measured: tuple[float, float]  # requests per second offered, and the cost


def build_curves() -> Iterator[Curve]:
    """The law is of the setting with the fewest sequences alone."""
    sweep = read_sweep("h100-qwen3-8b-20rps")
    settings = {setting.row["max_num_seqs"]: setting for setting in reversed(sweep.settings)}
    present, log = settings[SEQS[0]], sweep.log([settings[SEQS[0]]])
    kv_tokens = find_kv_tokens(log)
    law = law_of_log(present.config(sweep.gpu), log, kv_tokens, present.trace())
    recorded = present.trace()
    rate = mean_rate(recorded)
    if law is None or rate is None:
        raise ValueError("the recording has no law")
    for seqs in SEQS:
        limits = limits_of(settings[seqs].config(sweep.gpu), kv_tokens=kv_tokens)
        points = []
        for wanted in RATES:
            trace = window(scale_rate(_repeat(recorded), wanted / rate), 0.0, duration_s(recorded))
            numbers = predict(trace, law, limits, GOALS, replicates=4)
            priced = add_cost(numbers, GpuRates(per_hour=GPU_HOUR), 1)
            if NUMBER in priced:
                points.append((float(wanted), priced[NUMBER]))
        yield Curve(seqs, points, (sweep_rate(settings[seqs]), _measured(seqs)))


def sweep_rate(setting: RecordedSetting) -> float:
    return mean_rate(setting.trace()) or 0.0


def _measured(seqs: int) -> float:
    rows = json.loads((DATA / "h100-power.json").read_text())["settings"]
    row = next(row for row in rows if row["max_num_seqs"] == seqs and row["max_num_batched_tokens"] == 8192)
    return float(1e3 * GPU_HOUR / 3600 / row["goodput_rps"])


def _repeat(trace: Trace) -> Trace:
    each_s = duration_s(trace)
    return tuple(
        replace(request, arrival_s=request.arrival_s + turn * each_s)
        for turn in range(TIMES)
        for request in trace
    )


def draw(curves: Sequence[Curve]) -> str:
    """An SVG with a line, a band and a measured point for each setting."""
    lines = [*_axes()]
    for curve in curves:
        color = COLORS[curve.seqs]
        upper = [(rate, band.high) for rate, band in curve.points]
        lower = [(rate, band.low) for rate, band in reversed(curve.points)]
        middle = [(rate, band.value) for rate, band in curve.points]
        (rate, cost), end, name = curve.measured, middle[-1], f"max_num_seqs {curve.seqs}"
        lines += [
            f'<polygon points="{_path([*upper, *lower])}" fill="{color}" opacity="0.18"/>',
            f'<polyline points="{_path(middle)}" fill="none" stroke="{color}" stroke-width="2"/>',
            f'<circle cx="{_x(rate):.1f}" cy="{_y(cost):.1f}" r="5" fill="{color}" stroke="white"/>',
            f'<text x="{RIGHT}" y="{_y(end[1]) - 14:.1f}" fill="{color}" text-anchor="end">{name}</text>',
        ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" font-size="13">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n' + "\n".join(lines) + "\n</svg>\n"
    )


def _axes() -> Iterator[str]:
    for value, text in TICKS:
        yield f'<line x1="{LEFT}" x2="{RIGHT}" y1="{_y(value):.1f}" y2="{_y(value):.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 6}" y="{_y(value) + 4:.1f}" text-anchor="end" fill="#333">{text}</text>'
    for rate in range(0, round(RATES[-1]) + 1, 10):
        yield f'<text x="{_x(rate):.1f}" y="{BOTTOM + 18}" text-anchor="middle" fill="#333">{rate}</text>'
    title = f"cost of 1,000 good requests (a GPU for {GPU_HOUR} an hour)"
    below = "requests per second; line and 80 % band predicted, dots measured"
    yield f'<text x="{LEFT}" y="14" fill="#333">{title}</text>'
    yield (f'<text x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle" fill="#333">{below}</text>')


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_x(rate):.1f},{_y(cost):.1f}" for rate, cost in points)


def _x(rate: float) -> float:
    return LEFT + (RIGHT - LEFT) * rate / RATES[-1]


def _y(cost: float) -> float:
    share = log10(min(max(cost, LOWEST), HIGHEST) / LOWEST) / log10(HIGHEST / LOWEST)
    return BOTTOM - (BOTTOM - TOP) * share


if __name__ == "__main__":
    sys.stdout.write(draw(list(build_curves())))
