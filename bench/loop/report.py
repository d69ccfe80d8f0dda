"""The results as text and as JSON."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median

from bench.loop.score import BETTER, EQUAL, Score

SLOW_RPS, FAST_RPS = 0.6, 2.0
FAILING = 0.5  # goodput of the setting that the world begins with
NEVER_MIN = float("inf")
GOING = ("promoted", "running")  # the world may end in the hold step


def line(score: Score) -> str:
    summary = "nothing"
    if score.first is not None:
        first = score.first.suggestion
        change = ", ".join(f"{knob} {first.before.get(knob)}→{value}" for knob, value in first.to.items())
        summary = f"{first.rule} {change} at {first.at_s:.0f} s"
    wrong = sum(not s.right for s in score.suggestions)
    harmful = sum(s.harmful for s in score.suggestions)
    outcomes = ", ".join(r.outcome for r in score.rollouts) or "-"
    return (
        f"{score.world:<26} {score.seed:>3} {'right' if score.first_right else 'WRONG':<5} {summary:<58} "
        f"n={len(score.suggestions)} wrong={wrong} harm={harmful} sympt={_min(score.symptom_s)} "
        f"right={_min(score.right_since_s)} end={score.end:.2f} best={score.best_end:.2f} lost={score.lost} "
        f"gave_up={score.gave_up} [{outcomes}] {score.cpu_s:.0f} s"
        + "".join(f"; MISSED: {what}" for what in score.missed)
    )


def _min(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 60:.1f}"


def figures(scores: Sequence[Score]) -> dict[str, object]:
    """Return the goal table of the benchmark, over all runs."""
    cured = [score for score in scores if score.curable]
    calm = [score for score in scores if not score.curable]
    urgent = [o for o in cured if o.rate >= FAST_RPS and o.start < FAILING and o.symptom_s is not None]
    slow = [o for o in cured if o.rate <= SLOW_RPS and o.symptom_s is not None]
    ends = [(score.gains[r.id], r) for score in scores for r in score.rollouts]
    better = [r for gain, r in ends if gain >= BETTER]
    equal = [r for gain, r in ends if abs(gain) < EQUAL and r.outcome != "running"]
    worse = [r for gain, r in ends if gain <= -EQUAL and r.outcome != "running"]
    forecasts = [r for _, r in ends if r.forecast_s and r.canary_s is not None]
    return {
        "runs": len(scores),
        "worlds": len({score.world for score in scores}),
        "first suggestion right, worlds with a cure": _rate(score.first_right for score in cured),
        "harmful suggestions": sum(s.harmful for score in scores for s in score.suggestions),
        "wrong suggestions": sum(not s.right for score in scores for s in score.suggestions),
        "suggested where nothing cures": _rate(bool(score.suggestions) for score in calm),
        "cure min, >= 2 rps and < 50 %": _quantiles(_cure(o) for o in urgent),
        "cure min, <= 0.6 rps": _quantiles(_cure(o) for o in slow),
        "better greens that ended otherwise than promoted": _rate(r.outcome not in GOING for r in better),
        "equal greens, min to the end": _quantiles((r.canary_s or 0.0) / 60 for r in equal),
        "equal greens promoted": _rate(r.outcome == "promoted" for r in equal),
        "worse greens promoted": _rate(r.outcome == "promoted" for r in worse),
        "within the forecast of nine of ten": _rate(
            (r.canary_s or 0) <= (r.forecast_s or (0, 0))[1] for r in forecasts
        ),
        "regret, points": _quantiles(100 * score.regret for score in cured),
        "requests exposed": sum(r.exposed for _, r in ends),
        "of those bad": sum(r.bad for _, r in ends),
        "requests lost": sum(score.lost for score in scores),
        "requests given up by their clients": sum(score.gave_up for score in scores),
        "requests sent": sum(score.sent for score in scores),
        "cpu s": round(sum(score.cpu_s for score in scores)),
    }


def _cure(score: Score) -> float:
    return NEVER_MIN if score.cure_s is None else score.cure_s / 60


def _rate(values: Iterable[bool]) -> str:
    marks = list(values)
    return f"{sum(marks)} of {len(marks)}"


def _quantiles(values: Iterable[float]) -> str:
    ordered = sorted(values)
    if not ordered:
        return "-"
    p90 = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return f"median {median(ordered):.1f}, p90 {p90:.1f} of {len(ordered)}"


def table(scores: Sequence[Score]) -> str:
    worlds: Mapping[str, list[Score]] = defaultdict(list)
    for score in scores:
        worlds[score.world].append(score)
    head = f"{'WORLD':<26} RUNS RIGHT WRONG HARM  CURE min  END  BEST REGRET LOST ROLLOUTS"
    rows = [head]
    for name, runs in worlds.items():
        results: dict[str, int] = defaultdict(int)
        for score in runs:
            for rollout in score.rollouts:
                results[rollout.outcome] += 1
        rows.append(
            f"{name:<26} {len(runs):>4} {sum(o.first_right for o in runs):>5} "
            f"{sum(not s.right for o in runs for s in o.suggestions):>5} "
            f"{sum(s.harmful for o in runs for s in o.suggestions):>4} "
            f"{median(map(_cure, runs)):>9.1f} {median(o.end for o in runs):>4.2f} {runs[0].best_end:>5.2f} "
            f"{100 * median(o.regret for o in runs):>6.1f} {sum(o.lost for o in runs):>4} "
            + ", ".join(f"{count} {result}" for result, count in results.items())
        )
    return "\n".join([*rows, "", *(f"{what:<48} {value}" for what, value in figures(scores).items())])


def document(scores: Sequence[Score]) -> dict[str, object]:
    runs = [
        asdict(score) | {"regret": score.regret, "first_right": score.first_right, "cure_s": score.cure_s}
        for score in scores
    ]
    return {"figures": figures(scores), "runs": runs}
