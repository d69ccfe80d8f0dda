"""The releases of the upgrade benchmark, and its table."""

from dataclasses import replace

import pytest

from bench.upgrades.releases import BAD, GOOD, choose
from bench.upgrades.report import Upgrade, table
from bench.upgrades.virtual import draw_runs
from flettner.simulator.faults import Faults

UPGRADE = Upgrade(
    release="2 % errors",
    engine="process",
    seed=0,
    rate=16.0,
    outcome="rolled_back",
    why="green is worse: 40 of 1,920 requests failed or cut",
    right=True,
    weight=50,
    exposed=1950,
    bad=41,
    lost=0,
    sent=4000,
    minutes=2.5,
)


def test_a_bad_release_is_right_only_with_a_cause_that_names_it() -> None:
    (errors,) = choose(["2 % errors"])

    assert errors.faults == Faults(errors=0.02)
    assert errors.is_right(UPGRADE.outcome, UPGRADE.why)
    assert not errors.is_right("promoted", "")
    assert not errors.is_right("rolled_back", "no verdict at 50 % within 45 min")


def test_every_release_is_good_or_names_its_causes() -> None:
    assert all(release.right == "promoted" for release in GOOD)
    assert all(release.right == "rolled_back" and release.causes for release in BAD)
    with pytest.raises(ValueError, match="there are: start hangs"):
        choose(["no such"])


def test_virtual_runs_are_of_releases_that_show_by_their_requests() -> None:
    names = {run.release.name for run in draw_runs(choose(()), seeds=1, hold_s=300.0)}

    assert names == {release.name for release in (*BAD, *GOOD) if release.virtual}


def test_the_table_has_a_row_for_each_release_and_engine() -> None:
    wrong = replace(UPGRADE, right=False, outcome="promoted", exposed=4000, lost=2)

    text = table([UPGRADE, wrong, replace(UPGRADE, engine="docker")], choose(()))

    assert (
        "| 2 % errors | process | 2 | 1 | promoted, rolled_back | 2975 (most 4000) | 41 | 2 | 2.5 |" in text
    )
    assert "| 2 % errors | docker | 1 | 1 |" in text
    assert text.endswith("2 of 3 right, 2 requests lost of 12000")
