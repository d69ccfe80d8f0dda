"""Histories on Kubernetes; `python -m tests.simulation --on kubernetes --seeds 0-199` plays more."""

import pytest

from tests.simulation.kubernetes.history import KubernetesHistory, play
from tests.simulation.kubernetes.mutants import CAUGHT, MUTANTS
from tests.simulation.kubernetes.scenario import KINDS, ClusterScenario, scenario_of
from tests.simulation.mutants import mutated
from tests.simulation.scenario import Act, name_of
from tests.simulation.shrink import pasted

pytestmark = pytest.mark.timeout(600)

FOUND = {
    "a clock set back kept a server that had refused requests out for an hour": ClusterScenario(
        seed=73,
        servers=2,
        mode="auto",
        acts=(
            Act(what="crash before", on="launch", lasts_s=61.6),
            Act(what="flags edited by hand", on="phase canary", lasts_s=35.8),
            Act(what="clock back", at_s=141.8, lasts_s=92.7),
        ),
    ),
    "a Deployment that a person had scaled to 0 came back with one pod instead of two": ClusterScenario(
        seed=368, replicas=2, acts=(Act(what="deployment scaled to 0 by hand", on="phase warming"),)
    ),
    "a rollout suspended in advise mode was to renew its lease": ClusterScenario(
        seed=262,
        exam=True,
        impatient=True,
        several=True,
        replicas=2,
        acts=(Act(what="daemon restarted in advise mode", at_s=133.4, lasts_s=126.6),),
    ),
    "a server that had refused requests was kept out while the one with the traffic hung": ClusterScenario(
        seed=583,
        green="hangs",
        mode="auto",
        acts=(Act(what="pod deleted by hand", at_s=85.9, lasts_s=9.5),),
    ),
    "flags that a pipeline applied at the end of the handover were not noticed": ClusterScenario(
        seed=61,
        strategy="swap",
        acts=(
            Act(what="daemon killed twice", on="phase promoting", lasts_s=10.8),
            Act(what="pipeline applies the manifest", on="phase promoting", lasts_s=127.0),
        ),
    ),
    "the Service of a green whose successor was deleted in the handover selected no pods": ClusterScenario(
        seed=1082, acts=(Act(what="deployment deleted by hand", at_s=153.6),)
    ),
    "a server that had refused requests was kept out while the one with the traffic failed": ClusterScenario(
        seed=1270, green="failing", acts=(Act(what="pod deleted by hand", on="phase launching"),)
    ),
    "flags of a rolling update that found no room were taken for those in force": ClusterScenario(
        seed=236,
        strategy="swap",
        replicas=2,
        spare=False,
        acts=(Act(what="flags edited by hand", at_s=138.2),),
    ),
    "traffic stayed with a green that hung in its handover, which waited for its list of adapters": (
        ClusterScenario(seed=915, strategy="swap", acts=(Act(what="new server hangs", at_s=109.5),))
    ),
    "a pod that started in place of one taken out was ended while it served, as the write was late": (
        ClusterScenario(seed=405, exam=True, replicas=2, acts=(Act(what="late", on="write", nth=6),))
    ),
    "a rollback took the pods back that an autoscaler had added while the daemon was away": ClusterScenario(
        seed=1303,
        acts=(
            Act(what="autoscaler scales up", at_s=94.1, lasts_s=27.1),
            Act(what="crash after", on="warm_up", lasts_s=3.4),
        ),
    ),
    "pods were spared in the middle of a rolling update": ClusterScenario(
        seed=1473,
        strategy="save",
        replicas=2,
        acts=(Act(what="flags edited by hand", at_s=52.0, lasts_s=3.9),),
    ),
    "a start without a node took the pods back that an autoscaler had added": ClusterScenario(
        seed=2011,
        strategy="save",
        replicas=2,
        spare=False,
        acts=(
            Act(what="autoscaler scales up", at_s=127.4, lasts_s=4.2),
            Act(what="load returns", at_s=101.6, lasts_s=60.0),
        ),
    ),
    "a Deployment that a slow API server made after the rollback was left": ClusterScenario(
        seed=2044,
        mode="auto",
        replicas=2,
        rate=1,
        acts=(
            Act(what="API server slow", at_s=87.4, lasts_s=42.0),
            Act(what="API server slow", at_s=46.6, lasts_s=98.9),
        ),
    ),
    "a handover in which green had no pods left was taken for an outage after a restart": ClusterScenario(
        seed=5466,
        acts=(
            Act(what="crash after", on="read", nth=131, lasts_s=107.7),
            Act(what="autoscaler scales up", on="phase launching", lasts_s=34.8),
        ),
    ),
    "a handover without room for the last pod was undone with an outage": ClusterScenario(
        seed=5466,
        acts=(
            Act(what="error", on="write", nth=6, lasts_s=5.7),
            Act(what="crash after", on="read", nth=131, lasts_s=107.7),
            Act(what="autoscaler scales up", on="phase launching", lasts_s=34.8),
        ),
    ),
    "a Service that was made after its start was given up was left": ClusterScenario(
        seed=2544,
        acts=(
            Act(what="late", on="write", nth=4, lasts_s=1.9),
            Act(what="deployment scaled to 0 by hand", on="phase launching", lasts_s=5.3),
        ),
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_fixed_faults_do_not_recur(what: str) -> None:
    result = play(FOUND[what])

    assert result.violations == [], "\n".join(result.log)


def with_green_that_exits(at_s: float) -> ClusterScenario:
    """It is promoted at 82.3 s, and its handover begins within the next second."""
    return ClusterScenario(
        seed=0,
        strategy="swap",
        spare=False,
        boots_s=(5.0, 12.0),
        acts=(Act(what="new server exits", at_s=at_s),),
    )


@pytest.mark.parametrize("at_s", [88.0, 91.34, 110.0])  # before, while and after its Service is switched
def test_a_green_that_exits_in_its_handover_goes_on_in_the_operators_deployment(at_s: float) -> None:
    result = play(with_green_that_exits(at_s))

    assert result.violations == []
    assert [line for line in result.log if "rollout.promoted" in line], "\n".join(result.log)
    assert [line for line in result.log if "create flettner-vllm0" in line] == []


def test_no_copy_replaces_the_operators_deployment_whenever_green_exits_before_its_handover() -> None:
    for tenths in range(818, 827):
        result = play(with_green_that_exits(tenths / 10 + 0.05))

        assert result.violations == []
        assert [line for line in result.log if "create flettner-vllm0" in line] == [], "\n".join(result.log)


def test_a_promotion_loses_no_server() -> None:
    log = play(ClusterScenario(seed=0)).log

    assert [line for line in log if "server.ended" in line] != []
    assert [line for line in log if "server.lost" in line] == []


@pytest.mark.smoke
@pytest.mark.parametrize("mutant", MUTANTS)
def test_detects_a_seeded_bug(mutant: str) -> None:
    scenario, says = CAUGHT[mutant]

    with mutated(MUTANTS[mutant]):
        caught = KubernetesHistory(scenario=scenario, settled_s=600.0).run().violations

    assert [violation for violation in caught if violation.startswith(says)], caught
    assert play(scenario).violations == []


def test_a_seed_reproduces_its_history() -> None:
    assert play(scenario_of(3)).log == play(scenario_of(3)).log


def test_draws_every_kind_of_fault() -> None:
    drawn = {name_of(act) for seed in range(3000) for act in scenario_of(seed).acts}
    drawn |= {f"{act.on}: {act.what}" for seed in range(3000) for act in scenario_of(seed).acts}

    assert set(KINDS) <= drawn


def test_prints_a_scenario_that_can_be_pasted() -> None:
    scenario = scenario_of(4)

    assert eval(pasted(scenario)) == scenario  # noqa: S307
