"""Charts as inline SVG, without scripts and other files."""

from collections.abc import Sequence
from html import escape

_LEFT, _WIDTH, _ROW = 300, 420, 22
_SIDE, _PAD = 320, 46
_COLOURS = ("#777777", "#0b6fa4", "#b5541c")


def bars(rows: Sequence[tuple[str, float | None, float | None]]) -> str:
    """Draw a bar for each label with its share, and a tick at the prediction. None: no bar."""
    height = _ROW * len(rows) + 10
    parts = [f'<svg viewBox="0 0 {_LEFT + _WIDTH + 60} {height}" role="img">']
    for at, (label, share, predicted) in enumerate(rows):
        y = 4 + at * _ROW
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>')
        if share is None:
            parts.append(f'<text x="{_LEFT}" y="{y + 14}">did not serve</text>')
            continue
        width = _WIDTH * share
        colour = _COLOURS[0] if at == 0 else _COLOURS[1]
        parts.append(f'<rect x="{_LEFT}" y="{y + 2}" width="{width:.1f}" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + width + 5:.1f}" y="{y + 14}">{share:.1%}</text>')
        if predicted is not None:
            x = _LEFT + _WIDTH * min(1.0, predicted)
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 18}" stroke="{_COLOURS[2]}"/>')
    return "".join((*parts, "</svg>"))


def scatter(points: Sequence[tuple[float, float]], across: str, up: str) -> str:
    """Draw shares against shares, with the diagonal."""
    size = _SIDE + 2 * _PAD
    parts = [
        f'<svg viewBox="0 0 {size} {size}" role="img" style="max-width:{size}px">',
        f'<rect x="{_PAD}" y="{_PAD}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#999"/>',
        f'<line x1="{_PAD}" y1="{_PAD + _SIDE}" x2="{_PAD + _SIDE}" y2="{_PAD}" stroke="#ccc"/>',
        f'<text x="{size / 2}" y="{size - 10}" text-anchor="middle">{escape(across)}</text>',
        f'<text x="{_PAD}" y="{_PAD - 12}">{escape(up)}</text>',
    ]
    for share in (0.0, 0.5, 1.0):
        place = _SIDE * share
        parts.append(
            f'<text x="{_PAD + place}" y="{_PAD + _SIDE + 16}" text-anchor="middle">{share:.0%}</text>'
        )
        parts.append(
            f'<text x="{_PAD - 5}" y="{_PAD + _SIDE - place + 4}" text-anchor="end">{share:.0%}</text>'
        )
    for x, y in points:
        parts.append(
            f'<circle cx="{_PAD + _SIDE * x:.1f}" cy="{_PAD + _SIDE * (1 - y):.1f}" r="4" '
            f'fill="{_COLOURS[1]}" fill-opacity="0.7"/>'
        )
    return "".join((*parts, "</svg>"))
