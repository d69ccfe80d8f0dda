"""The site of the capacity benchmarks, and the cost of one more target."""

from pathlib import Path

from agent.config.loader import parse
from bench.capacity.site import API, LISTEN, CapacityConfig, name_of
from bench.capacity.targets import per_target


def test_the_config_of_fifty_targets_is_valid(tmp_path: Path) -> None:
    config = parse(CapacityConfig(targets=50).text(api=API, listen=LISTEN), here=tmp_path)

    assert [target.name for target in config.targets] == [name_of(number) for number in range(50)]


def test_the_cost_of_a_further_target_is_the_slope_between_the_smallest_and_the_largest_run() -> None:
    costs = {"daemon_rss_mib": 60.0, "envoys_cpu_percent": 1.0, "envoys_rss_mib": 70.0}
    runs = [
        {"targets": 11, "daemon_cpu_percent": 12.0, **costs},
        {"targets": 1, "daemon_cpu_percent": 2.0, **costs},
    ]

    assert per_target(runs) == {
        "daemon_cpu_percent": 1.0,
        "daemon_rss_mib": 0.0,
        "envoys_cpu_percent": 0.0,
        "envoys_rss_mib": 0.0,
    }
