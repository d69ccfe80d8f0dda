"""Design targets, measured values, and whether they are met."""

from collections.abc import Iterator, Mapping
from typing import Any

from bench.judge.scenarios import SCENARIOS

Results = Mapping[str, Any]
MOST_FALSE = 0.01
MOST_WRONG = 0.05
SLACK = 1.15
DEARER = 1.3  # times the requests of a judge that does not know the clients
Line = tuple[str, str, str, bool]
"""Name, target, measured value, met."""


def lines(results: Results) -> Iterator[Line]:
    for section in ("nulls", "worse", "late"):
        yield from _hours(results.get(section, {}))
    yield from _passing(results.get("passing", {}))
    yield from _rollouts(results.get("rollouts", {}))
    yield from _clients(results.get("clients", {}))
    yield from _gain(results.get("gain", {}))
    yield from _hot(results.get("hot", {}))
    for name, row in results.get("cost", {}).items():
        if name == "4 streams":
            yield "a tick of four streams, p99", "under 2 ms", f"{row['p99_ms']} ms", row["p99_ms"] < 2  # noqa: PLR2004


def _hours(rows: Results) -> Iterator[Line]:
    for name, row in rows.items():
        wanted, ours = SCENARIOS[name], row["ours"]
        if wanted.null:
            yield name, "at most 1 % rolled back", _share(ours), ours["back"] <= MOST_FALSE
        if wanted.wanted_share is not None and wanted.wanted_share < 0.99:  # noqa: PLR2004
            least = wanted.wanted_share / SLACK
            yield name, f"{wanted.wanted_share:.0%} rolled back", _share(ours), ours["back"] >= least
        if wanted.wanted_median is not None:
            yield _median(name, "requests", ours["requests"][0], wanted.wanted_median)
        if wanted.wanted_minutes is not None:
            yield _median(name, "min", ours["minutes"][0], wanted.wanted_minutes, slack=0.25)


def _passing(rows: Results) -> Iterator[Line]:
    for name, row in rows.items():
        yield _median(f"passes, {name}", "requests", row["requests"][0], row["wanted"])
        if "passed_though_worse" in row:
            wrong, runs = row["passed_though_worse"], row["runs"]
            noise = 2 * (MOST_WRONG * (1 - MOST_WRONG) / runs) ** 0.5
            measured = f"{wrong:.1%} of {runs}"
            yield f"passes though worse, {name}", "at most 5 %", measured, wrong <= MOST_WRONG + noise


def _rollouts(rows: Results) -> Iterator[Line]:
    for name, row in rows.items():
        if name.startswith("null"):
            yield f"full rollout, {name}", "at most 1 % rolled back", _share(row), row["back"] <= MOST_FALSE


def _clients(rows: Results) -> Iterator[Line]:
    for name, row in rows.items():
        if name.startswith("equal") and "blind" not in name:
            yield f"clients, {name}", "at most 1 % rolled back", _share(row), row["back"] <= MOST_FALSE
        elif "at blue" in name or "at green" in name:
            noise = 2 * (MOST_WRONG * (1 - MOST_WRONG) / row["runs"]) ** 0.5
            measured, most = f"{row['passed']:.1%} of {row['runs']}", MOST_WRONG + noise
            yield f"clients, passes: {name}", "at most 5 %", measured, row["passed"] <= most
        elif (blind := rows.get(f"{name}, blind")) is not None:
            wanted, value = blind["requests"][0], row["requests"][0]
            line = _median(f"clients, {name}", "requests", value, wanted or 0.0)
            yield *line[:3], bool(value and wanted and value <= DEARER * wanted)


def _gain(rows: Results) -> Iterator[Line]:
    for name, row in rows.items():
        if name.startswith("equal"):
            called, runs = row["called_better"], row["runs"]
            noise = 2 * (MOST_WRONG * (1 - MOST_WRONG) / runs) ** 0.5
            measured = f"{called:.1%} of {runs}"
            yield f"called better, {name}", "at most 5 %", measured, called <= MOST_WRONG + noise


def _hot(rows: Results) -> Iterator[Line]:
    """Count over all loads: the promise holds for the judge, not for each row."""
    equal = {name: row for name, row in rows.items() if name.startswith("equal")}
    needed = [row for name, row in equal.items() if "no gain needed" not in name]
    for kind, most, among in (("pass", MOST_WRONG, needed), ("fail", MOST_FALSE, list(equal.values()))):
        runs, wrong = sum(row["runs"] for row in among), sum(row.get(kind, 0) for row in among)
        if runs:
            noise = 2 * (most * (1 - most) / runs) ** 0.5
            measured = f"{wrong / runs:.1%} of {runs}"
            yield f"time-split, equal: {kind}", f"at most {most:.0%}", measured, wrong / runs <= most + noise


def _share(row: Results) -> str:
    return f"{row['back']:.1%} of {row['runs']}"


def _median(name: str, unit: str, value: float | None, wanted: float, slack: float = 0.0) -> Line:
    """Accept up to 15 % above the target; `slack`: addition of one tick."""
    measured = "none" if value is None else f"{value:g} {unit}"
    met = value is not None and value <= wanted * SLACK + slack
    return name, f"{wanted:g} {unit} (median)", measured, met


def table(results: Results) -> str:
    rows = list(lines(results))
    width = max((len(what) for what, *_ in rows), default=0)
    return "\n".join(
        f"{'met   ' if met else 'MISSED'}  {what:{width}}  wanted {wanted:24}  {measured}"
        for what, wanted, measured, met in rows
    )
