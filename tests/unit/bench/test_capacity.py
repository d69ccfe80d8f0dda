"""The site of the capacity benchmarks, and the cost of one more target."""

from collections import Counter
from functools import partial
from math import inf
from pathlib import Path

import pytest

from bench.capacity import stand_ins
from bench.capacity.model_cost import difference
from bench.capacity.pod_servers import MovingPage, pods_of
from bench.capacity.site import API, LISTEN, CapacityConfig, Look, Ticks, name_of
from bench.capacity.targets import per_target
from bench.usage import Usage
from flettner.agent.config.loader import parse_config
from flettner.vllm_facts.metrics.totals import totals


def test_the_config_of_fifty_targets_is_valid(tmp_path: Path) -> None:
    config = parse_config(CapacityConfig(targets=50).text(api=API, listen=LISTEN), here=tmp_path)

    assert [target.name for target in config.targets] == [name_of(number) for number in range(50)]


@pytest.mark.parametrize("is_on", [True, False])
def test_a_site_has_the_model_or_not(tmp_path: Path, is_on: bool) -> None:
    config = parse_config(CapacityConfig(model=is_on).text(api=API, listen=LISTEN), here=tmp_path)

    assert config.learn is is_on
    assert ("model" in {policy.name for policy in config.policies}) is is_on


def test_late_ticks_are_those_above_the_bucket_of_100_ms() -> None:
    before, after = (
        Look(at_s=at_s, daemon=Usage(cpu_s, 70.0), ticks=Ticks(Counter(ticks)))
        for at_s, cpu_s, ticks in (
            (0.0, 1.0, {0.01: 5, 0.1: 6, 0.5: 6, inf: 6}),
            (100.0, 3.0, {0.01: 80, 0.1: 103, 0.5: 106, inf: 106}),
        )
    )

    costs = difference(before, after)

    assert costs["daemon_cpu_percent"] == 2.0
    assert (costs["ticks"], costs["ticks_late_by_100_ms"]) == (100, 3)
    assert costs["latest_tick_within_s"] == 0.5


def test_the_cost_of_a_further_target_is_the_slope_between_the_smallest_and_the_largest_run() -> None:
    costs = {"daemon_rss_mib": 60.0, "envoy_cpu_percent": 1.0, "envoy_rss_mib": 70.0}
    runs = [
        {"targets": 11, "daemon_cpu_percent": 12.0, **costs},
        {"targets": 1, "daemon_cpu_percent": 2.0, **costs},
    ]

    assert per_target(runs) == {
        "daemon_cpu_percent": 1.0,
        "daemon_rss_mib": 0.0,
        "envoy_cpu_percent": 0.0,
        "envoy_rss_mib": 0.0,
    }


def test_two_hundred_targets_have_a_stand_in_for_the_engine_the_proxy_and_its_requests(
    tmp_path: Path,
) -> None:
    text = CapacityConfig(targets=200).text(api=API, listen=LISTEN)

    config = parse_config(text, here=tmp_path, build=partial(stand_ins.build, 4, 0.5))

    assert {type(target.engine.plugin) for target in config.targets} == {stand_ins.PodEngineOptions}
    assert {type(target.traffic.plugin) for target in config.targets} == {stand_ins.IdleTraffic}
    assert [sensor.name for sensor in config.targets[0].sensors] == ["vllm_metrics", "proxy_requests"]
    assert len({pod for number in range(200) for pod in pods_of(number, 4)}) == 800


def test_the_page_of_the_pods_grows_by_one_request_a_second() -> None:
    page = MovingPage()
    early, late = (totals(page.answer(second).partition(b"\r\n\r\n")[2]) for second in (100, 102))

    assert late.finished["length"] - early.finished["length"] == 2.0
    assert late.histograms["ttft"].counts[-1] - early.histograms["ttft"].counts[-1] == 2.0
    assert late.born == early.born


def test_the_lateness_of_ticks_is_that_of_the_bucket_which_holds_the_share() -> None:
    before, after = (
        Ticks(Counter({0.01: fast, 0.1: fast + slow, inf: fast + slow})) for fast, slow in ((50, 0), (148, 2))
    )
    ticks = after - before

    assert (ticks.count, ticks.late_s(0.5), ticks.late_s(0.99), ticks.late_s(1.0)) == (100, 0.01, 0.1, 0.1)
