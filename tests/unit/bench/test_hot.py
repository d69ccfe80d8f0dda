"""The simulated server of the bench of time-split trials, and single trials."""

import pytest

from bench.judge.hot import play, summarise
from bench.judge.queueing import Load, QueueingServer, Setting
from bench.judge.report import table
from bench.judge.traffic import seeded


def test_every_request_ends_once() -> None:
    load, server = Load("steady", 8.0, seeded("test")), QueueingServer(40.0)
    arrived = ended = 0
    for second in range(600):
        arrivals = load.second(second) if second < 500 else []
        counts = server.run_second(second, arrivals, Setting(0.8 if second % 60 < 30 else 1.6))
        arrived += len(arrivals)
        ended += counts.total + counts.gave_up

    assert arrived == ended > 3000


def test_what_one_setting_leaves_waiting_the_next_one_serves_late() -> None:
    load, server = Load("steady", 8.0, seeded("test")), QueueingServer(40.0)
    for second in range(60):
        server.run_second(second, load.second(second), Setting(0.4, late=0.0))
    waiting = server.liveness().waiting
    later = [server.run_second(60 + second, [], Setting(2.0, late=0.0)) for second in range(60)]

    assert waiting > 100
    assert sum(counts.late for counts in later) > 100


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a queue cured", "pass"),
        ("a queue made", "fail"),
        ("50 points better", "pass"),
        ("50 points worse", "fail"),
    ],
)
def test_large_effects_are_found_under_a_steady_load(name: str, kind: str) -> None:
    assert {play(name, "steady", 8.0, run).kind for run in range(3)} == {kind}


def test_the_report_counts_false_verdicts_over_all_loads() -> None:
    ended = [play("equal, overloaded", "steady", 2.0, run) for run in range(3)]
    results = {"hot": {"equal, overloaded, steady, 2 rps": summarise(ended)}}

    assert "time-split, equal: pass" in table(results)
