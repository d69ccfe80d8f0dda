"""Sections `quiet`: one request of green every ten seconds; `several`: four streams at once."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf, log

from bench.judge.hours import finite, learned
from bench.judge.ours import SURE, Evidence, calibrated, greens
from bench.judge.peers import flagger
from bench.judge.runs import Pool, Row
from bench.judge.scenarios import HOUR
from bench.judge.traffic import Traffic, history, quantiles, seeded, ticks
from flettner.agent.judge.eprocess import log_sum

SHARE = 0.2  # of the requested runs
QUIET = Traffic(green_rps=0.1, blue_rps=0.3)
EIGHT_HOURS = 8 * HOUR
QUIET_WANTED = {0.01: None, 0.05: 343, 0.10: 100, 0.50: 12}
"""Median requests for one lens, phi 1 and one start time."""
USUAL = (0.002, 0.01, 0.03, 0.01)  # of the four streams; green worsens the last one
SEVERAL_WANTED = {0.01: None, 0.03: 1682, 0.05: 408, 0.10: 120}


def quiet(share: float, run: int) -> tuple[float, bool]:
    """Return the requests of green until its rollback, and whether Flagger's threshold of 10 was passed."""
    random = seeded("quiet", share, run)
    evidence = Evidence(learned(QUIET, run))
    made = ticks(random, QUIET, [share] * EIGHT_HOURS, [0.01] * EIGHT_HOURS)
    green = greens(made)
    peer = flagger(10)(green, 0.02) is not None
    asked = 0
    for tick in made:
        asked += tick[0][0]
        if evidence.update(tick) >= SURE:
            return asked, peer
    return inf, peer


def several(share: float, run: int) -> float:
    """Decide by the mean evidence of four streams."""
    random, asked = seeded("several", share, run), 0
    calibrations = [calibrated(history(random, Traffic(), 1.0, usual)) for usual in USUAL]
    streams = [
        Evidence(calibration, usual=usual) for calibration, usual in zip(calibrations, USUAL, strict=True)
    ]
    shares = (*USUAL[:-1], share)
    made = [
        ticks(random, Traffic(), [now] * HOUR, [usual] * HOUR)
        for now, usual in zip(shares, USUAL, strict=True)
    ]
    for number in range(HOUR):
        rows = [stream[number] for stream in made]
        asked += rows[-1][0][0]
        logs = [stream.update(tick) for stream, tick in zip(streams, rows, strict=True)]
        if log_sum(logs) - log(len(logs)) >= SURE:
            return asked
    return inf


def measure_quiet(pool: Pool, runs: int) -> Iterator[tuple[str, Row]]:
    many = max(2, round(runs * SHARE))
    for share, wanted in QUIET_WANTED.items():
        counts, peers = zip(*pool.of(partial(quiet, share), many), strict=True)
        yield f"1 to {share:.0%}", _row(counts, wanted) | {"flagger 10": sum(peers) / many}


def measure_several(pool: Pool, runs: int) -> Iterator[tuple[str, Row]]:
    many = max(2, round(runs * SHARE))
    for share, wanted in SEVERAL_WANTED.items():
        yield f"1 to {share:.0%}", _row(pool.of(partial(several, share), many), wanted)


def _row(counts: Sequence[float], wanted: float | None) -> Row:
    return {
        "runs": len(counts),
        "back": sum(count < inf for count in counts) / len(counts),
        "requests": finite(quantiles(counts, 0.5, 0.9)),
        "wanted": wanted,
    }
