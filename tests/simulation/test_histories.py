"""Regression scenarios of found faults; `python -m tests.simulation --seeds 0-599` plays many seeds."""

import pytest

from tests.simulation.history import play
from tests.simulation.scenario import KINDS, Act, Scenario, scenario_of
from tests.simulation.shrink import pasted, shrunk

FOUND = {
    "a server that was back when a hot change had been taken back got no traffic": Scenario(
        seed=1694,
        servers=2,
        strategy="hot",
        green="failing",
        mode="auto",
        ours=False,
        acts=(
            Act(what="stuck", on="set_knobs", nth=3, lasts_s=2.8),
            Act(what="out of memory", at_s=41.3, lasts_s=21.1),
            Act(what="config needs a restart", at_s=26.5, lasts_s=3.0),
            Act(what="config reloaded", at_s=42.4, lasts_s=3.0),
        ),
    ),
    "a server that carried the traffic of a failing one was stopped to free its slot": Scenario(
        seed=2905, servers=2, strategy="replace", several=True, acts=(Act(what="old server errs", at_s=16.9),)
    ),
    "a daemon suspended during a takeover stopped a server": Scenario(
        seed=390,
        green="exits",
        acts=(
            Act(what="reply lost", on="warm_up", lasts_s=11.5),
            Act(what="daemon paused and replaced", at_s=19.7),
        ),
    ),
    "the only server that answered was retired because another server had its slot": Scenario(
        seed=647,
        servers=2,
        strategy="replace",
        exam=True,
        acts=(Act(what="out of memory", at_s=11.8),),
    ),
    "a late retirement stopped a server started meanwhile": Scenario(
        seed=389,
        strategy="swap",
        green="exits",
        acts=(Act(what="late", on="retire"),),
    ),
    "an old server that an operator had restarted was stopped with its requests": Scenario(
        seed=1236, ours=False, acts=(Act(what="flags changed by hand", at_s=18.7, lasts_s=3.8),)
    ),
    "the end of a cool-down lost a pending split": Scenario(
        seed=30553,
        acts=(
            Act(what="wrong", on="route", nth=2),
            Act(what="crash before", on="keep_alive", nth=20, lasts_s=7.3),
            Act(what="out of memory", at_s=8.6, lasts_s=20.3),
        ),
    ),
    "a clock set back delayed a retry for an hour": Scenario(
        seed=6093,
        strategy="swap",
        acts=(
            Act(what="late", on="drain", lasts_s=16.1),
            Act(what="clock back", at_s=28.9, lasts_s=1.8),
            Act(what="failed but done", on="retire", lasts_s=2.6),
            Act(what="failed but done", on="retire", lasts_s=22.0),
        ),
    ),
    "a clock set back ended the daemon in a trial of hot values": Scenario(
        seed=6722, strategy="hot", acts=(Act(what="clock back", at_s=12.0, lasts_s=10.2),)
    ),
    "a failover in a trial moved traffic to the server that had the bad values for longest": Scenario(
        seed=12433,
        servers=2,
        strategy="hot",
        green="failing",
        several=True,
        acts=(Act(what="stuck", on="set_knobs", nth=3, lasts_s=13.6),),
    ),
    "a daemon that took over in a rollback did not fence the older one": Scenario(
        seed=637,
        servers=2,
        strategy="replace",
        acts=(
            Act(what="reply lost", on="launch", lasts_s=4.2),
            Act(what="daemon paused and replaced", at_s=26.5, lasts_s=6.3),
        ),
    ),
    "traffic went back to an old server that was being retired when the new one exited": Scenario(
        seed=15246, acts=(Act(what="new server exits", at_s=41.5, lasts_s=1.7),)
    ),
    "traffic went to a green that was being retired when blue was stopped by hand": Scenario(
        seed=10137,
        ours=False,
        exam=True,
        acts=(
            Act(what="crash after", on="journal", nth=9, lasts_s=2.6),
            Act(what="crash before", on="route", nth=2, lasts_s=9.1),
            Act(what="flags changed by hand", at_s=16.7, lasts_s=17.8),
            Act(what="crash after", on="examine", lasts_s=3.2),
        ),
    ),
    "late values came into force at a server that a person had started with others meanwhile": Scenario(
        seed=14673,
        servers=2,
        strategy="hot",
        ours=False,
        acts=(
            Act(what="flags changed by hand", at_s=34.7, lasts_s=11.5),
            Act(what="recovery: crash", on="any", nth=3, start=1),
            Act(what="late", on="set_knobs", nth=3, lasts_s=2.6),
            Act(what="daemon killed", at_s=5.1),
        ),
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_fixed_faults_do_not_recur(what: str) -> None:
    result = play(FOUND[what])

    assert result.violations == [], "\n".join(result.log)


def test_a_seed_reproduces_its_history() -> None:
    scenario = scenario_of(23)

    assert play(scenario).log == play(scenario).log


def test_draws_every_kind_of_fault() -> None:
    scenarios = [scenario_of(seed) for seed in range(3000)]
    drawn = {f"{act.on}: {act.what}" for scenario in scenarios for act in scenario.acts}
    drawn |= {act.what for scenario in scenarios for act in scenario.acts}

    assert set(KINDS) <= drawn


def test_shrinks_a_failing_scenario_to_its_minimum() -> None:
    culprit = Act(what="clock back", at_s=9.0)
    acts = (Act(what="daemon killed", at_s=3.0), culprit, Act(what="refused", on="stop"))
    scenario = Scenario(seed=5, servers=2, green="hangs", on_disk=True, acts=acts)

    small = shrunk(scenario, lambda candidate: culprit in candidate.acts)

    assert small == Scenario(seed=5, acts=(culprit,))
    assert eval(pasted(small)) == small  # noqa: S307 - what is printed can be pasted
