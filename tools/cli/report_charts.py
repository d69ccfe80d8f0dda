"""Charts of a change report, as SVG in the page: no script and no file beside it."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from math import log10

WIDTH, HEIGHT = 720, 220
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 14, 30
COLOURS = ("#2a6fb0", "#b3541e", "#2e7d4f", "#7b4fa3", "#8a6d00", "#4f6d7a", "#a03a5b")
LEAST, MOST = -3.0, 6.0  # powers of ten that the axis of evidence shows
GAP = 13  # between labels

Curve = Sequence[tuple[float, float]]
"""(seconds since the start, value), oldest first."""


def chart_evidence(curves: Mapping[str, Curve], limits: Mapping[float, str]) -> str:
    """e-values by name on a logarithmic axis, with a line and its meaning for each limit."""
    scaled = {
        name: [(at, min(max(log10(max(value, 10**LEAST)), LEAST), MOST)) for at, value in curve]
        for name, curve in curves.items()
    }
    ticks = {float(power): f"{10**power:,}" for power in (-2, 0, 2, 4, 6)}
    return _chart(scaled, (LEAST, MOST), ticks, {log10(value): text for value, text in limits.items()})


def chart_share(curve: Curve) -> str:
    """The share of the traffic of the new servers, in percent, as steps."""
    steps = [point for before, after in pairwise(curve) for point in (before, (after[0], before[1]))]
    return _chart(
        {"new servers": [*steps, *curve[-1:]]}, (0.0, 100.0), {0.0: "0 %", 50.0: "50 %", 100.0: "100 %"}, {}
    )


def _chart(
    curves: Mapping[str, Curve],
    span: tuple[float, float],
    ticks: Mapping[float, str],
    limits: Mapping[float, str],
) -> str:
    last_s = max((at for curve in curves.values() for at, _ in curve), default=0.0) or 1.0
    low, high = span

    def x(at: float) -> float:
        return LEFT + at / last_s * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{text}</text>'
        for value, text in ticks.items()
    ]
    parts += [
        f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        f'<text class="limit" x="{LEFT + 4}" y="{y(value) - 4:.1f}">{escape(text)}</text>'
        for value, text in limits.items()
    ]
    parts += [
        f'<text x="{x(at):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{at:.0f} s</text>'
        for at in (0.0, last_s / 2, last_s)
    ]
    ends = sorted((y(curve[-1][1]), name) for name, curve in curves.items() if curve)
    label_y = float("-inf")
    for colour, name in zip(COLOURS * len(curves), curves, strict=False):
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in curves[name])
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>')
    colours = dict(zip(curves, COLOURS * len(curves), strict=False))
    for end_y, name in ends:
        label_y = max(end_y + 4, label_y + GAP)
        place = f'x="{WIDTH - RIGHT + 6}" y="{label_y:.1f}" style="fill:{colours[name]}"'
        parts.append(f"<text {place}>{escape(name)}</text>")
    label = escape(f"{', '.join(curves)}, over {last_s:.0f} s")
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="100%"'
    return f'<svg role="img" aria-label="{label}" {box}>{"".join(parts)}</svg>'
