"""The result of a run: text for the terminal, JSON, and an HTML page."""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from flettner.agent.prediction.what_if import MODELLED
from flettner.performance_model.step_law import write_law
from flettner.performance_model.trace import duration_s
from flettner.tools.advisor.render import format_command
from flettner.tools.terminal.tables import format_sentence, format_table
from flettner.tools.terminal.values import escape_text, format_latency
from flettner.tools.tuning.run import TuningResult
from flettner.tools.tuning.trials import TuningTrial
from flettner.vllm_facts.shell_command.serve_command import ServeCommand, edit_command
from flettner.vllm_facts.values import describe_changes

_LATE_S = 0.1  # with longer delays the client's own load shows in the latencies
_HEAD = ("SETTING", "WITHIN OBJECTIVES", "PREDICTED", "TTFT 90 %", "BETWEEN TOKENS 90 %", "FAILED")


def tuned_command(outcome: TuningResult) -> ServeCommand:
    """Return the command with the better setting; the given one if there is none."""
    verdict = outcome.verdict
    changes: Mapping[str, Any] = verdict.changes if verdict is not None and verdict.is_better else {}
    return edit_command(outcome.plan.command, changes, {})


def as_text(outcome: TuningResult) -> str:
    return (
        format_table(_HEAD, [_cells(trial) for trial in outcome.trials])
        + "\n"
        + format_sentence(conclusion(outcome))
        + "".join(map(format_sentence, warnings(outcome)))
        + "\n"
        + format_command(tuned_command(outcome))
    )


def conclusion(outcome: TuningResult) -> str:
    verdict = outcome.verdict
    if verdict is None:
        most = max(outcome.forecasts, key=lambda forecast: forecast.gain, default=None)
        gain, noise = (100 * most.gain, 100 * most.noise) if most else (0.0, 0.0)
        more = (
            f"; the most that is predicted is {gain:+.1f} points, standard error {noise:.1f}" if most else ""
        )
        return f"Keep the setting: no other one was worth a trial, or served{more}."
    what = describe_changes({knob: value for knob, value in verdict.changes.items()})  # type: ignore[misc]  # noqa: C416
    numbers = (
        f"{verdict.base:.1%} of the requests are within the objectives as given, "
        f"{verdict.base + verdict.gain:.1%} with {what} ({100 * verdict.gain:+.1f} points, standard error "
        f"{100 * verdict.noise:.1f})"
    )
    if verdict.is_better:
        return f"Better: {numbers}."
    return f"Keep the setting: {numbers}: not more than 2 points and two standard errors."


def warnings(outcome: TuningResult) -> list[str]:
    late = max((trial.measured.get("late_p99_s", 0.0) for trial in outcome.trials), default=0.0)
    sentences = []
    if late > _LATE_S:
        sentences.append(
            f"1 % of the requests were sent {format_latency(late)} late or more: this host is too slow for "
            "the load, and the latencies contain that."
        )
    failed = [trial for trial in outcome.trials if trial.why]
    sentences += [
        f"{describe_changes(trial.changes)}: {escape_text(trial.why)} ({outcome.plan.out / trial.log})"
        for trial in failed
    ]
    refused = outcome.space.refused
    if refused:
        why = max(refused, key=lambda reason: refused[reason])
        sentences.append(
            f"Settings that were left out: {sum(refused.values())}, mostly for this reason: {why}."
        )
    unknown = sorted(outcome.space.points[0].keys() - MODELLED) if outcome.forecasts else []
    if unknown:
        sentences.append(
            f"The effect of {', '.join(unknown)} is not predicted; `--search grid` tries every setting."
        )
    return sentences


def as_row(outcome: TuningResult) -> dict[str, Any]:
    verdict = outcome.verdict
    return {
        "command": tuned_command(outcome).words,
        "conclusion": conclusion(outcome),
        "better": verdict is not None and verdict.is_better,
        "verdict": None if verdict is None else asdict(verdict),
        "search": outcome.search,
        "requests": len(outcome.plan.trace),
        "seconds_of_load": round(duration_s(outcome.plan.trace), 3),
        "objectives": asdict(outcome.plan.goals),
        "law": json.loads(write_law(outcome.law)) if outcome.law else None,
        "candidates": len(outcome.space.points),
        "refused": outcome.space.refused,
        "predicted": [
            {"point": dict(forecast.point), "attainment": forecast.goodput, "standard_error": forecast.noise}
            for forecast in outcome.forecasts
        ],
        "trials": [asdict(trial) for trial in outcome.trials],
        "warnings": warnings(outcome),
    }


def as_html(outcome: TuningResult) -> str:
    command = format_command(tuned_command(outcome))
    pairs = [
        (trial.predicted, trial.goodput)
        for trial in outcome.trials
        if trial.predicted is not None and trial.goodput is not None
    ]
    plots = [
        "<h2>Requests within the objectives</h2>",
        bars([(_label(trial), trial.goodput, trial.predicted) for trial in outcome.trials]),
        *(
            [
                "<p>The line at a bar is what was predicted.</p><h2>Predicted and measured</h2>",
                scatter(pairs, "predicted", "measured"),
            ]
            if pairs
            else []
        ),
    ]
    rows = "".join(_html_row("td", _cells(trial)) for trial in outcome.trials)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>flettner tune</title>'
        "<style>body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        "svg{width:100%;font:12px sans-serif}td,th{text-align:left;padding:.2em .8em .2em 0}"
        "pre{background:#f4f4f4;padding:1em;overflow:auto}</style><h1>flettner tune</h1>"
        f"<p>{html.escape(conclusion(outcome))}</p><pre>{html.escape(command)}</pre>"
        + "".join(f"<p>{html.escape(line)}</p>" for line in warnings(outcome))
        + "".join(plots)
        + f"<h2>Trials</h2><table>{_html_row('th', _HEAD)}{rows}</table>"
        f"<p>{len(outcome.plan.trace):,} requests in {duration_s(outcome.plan.trace):,.0f} s; search "
        f"{html.escape(outcome.search)} over {len(outcome.space.points)} settings"
        f"{html.escape('; step times: ' + outcome.law.source) if outcome.law else ''}.</p></html>\n"
    )


def _html_row(cell: str, values: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(value)}</{cell}>" for value in values) + "</tr>"


def _cells(trial: TuningTrial) -> tuple[str, ...]:
    measured = trial.measured
    return (
        _label(trial),
        "-" if trial.goodput is None else f"{trial.goodput:.1%}",
        "-" if trial.predicted is None else f"{trial.predicted:.1%}",
        format_latency(measured.get("ttft_p90_s")),
        format_latency(measured.get("itl_p90_s")),
        f"{measured['failed_share']:.1%}" if "failed_share" in measured else "-",
    )


def _label(trial: TuningTrial) -> str:
    return (describe_changes(trial.changes) or "as given") + (" (again)" if trial.round else "")


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
