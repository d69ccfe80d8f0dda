"""Every sensor option in seconds is checked in the same way."""

from dataclasses import fields
from typing import Any

import pytest

from flettner.agent.plugins.option_errors import LONGEST_S
from flettner.sensors.docker_events.plugin import DockerEvents
from flettner.sensors.nvidia_smi.plugin import NvidiaSmi
from flettner.sensors.prometheus.plugin import Prometheus
from flettner.sensors.proxy_requests.plugin import ProxyRequests
from flettner.sensors.vllm_metrics.plugin import VllmMetrics

NEEDED: dict[type, dict[str, Any]] = {
    DockerEvents: {},
    NvidiaSmi: {},
    Prometheus: {"url": "http://localhost:9090", "queries": {"a": "b"}},
    ProxyRequests: {},
    VllmMetrics: {},
}
OPTIONS = [
    (sensor, option.name) for sensor in NEEDED for option in fields(sensor) if option.name[-2:] == "_s"
]


@pytest.mark.parametrize(("sensor", "name"), OPTIONS, ids=lambda it: getattr(it, "__name__", it))
@pytest.mark.parametrize("value", [0, -1.0, True, float("nan"), float("inf"), 1e300, 10**400], ids=str)
def test_rejects_an_invalid_period_and_names_the_option(sensor: type, name: str, value: float) -> None:
    with pytest.raises(
        ValueError, match=f"{name} must be a number of seconds above 0 and at most a year"
    ) as error:
        sensor(**NEEDED[sensor] | {name: value})

    assert len(str(error.value)) < 200


def test_accepts_a_period_of_one_year() -> None:
    assert DockerEvents(silence_s=LONGEST_S).silence_s == LONGEST_S
