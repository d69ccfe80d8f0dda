"""After how many seconds without a first byte a request is stalled."""

from pathlib import Path

import pytest

from flettner.agent.config.loader import parse_config
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model import Objective, Slo
from flettner.sensors.proxy_requests.plugin import ProxyRequests

CONFIG = """
[[targets]]
name = "chat"
engine = {{ kind = "process", serving = "http://127.0.0.1:8000" }}
slo = {{ ttft = {{ under = "2s", share = 0.95 }}, e2e = {{ under = "20s", share = 0.95 }} }}
sensors = {{ proxy_requests = {{ {options} }} }}
"""


def promising(ttft_s: float | None = None, e2e_s: float | None = None) -> Slo:
    ttft, e2e = (None if s is None else Objective(under_s=s, share=0.95) for s in (ttft_s, e2e_s))
    return Slo(ttft=ttft, e2e=e2e, itl=Objective(under_s=900.0, share=0.95))


@pytest.mark.parametrize(
    ("slo", "streamed_s", "unstreamed_s"),
    [
        pytest.param(promising(), 60.0, 120.0, id="nothing is promised"),
        pytest.param(promising(ttft_s=0.5, e2e_s=5.0), 60.0, 120.0, id="quick answers"),
        pytest.param(promising(ttft_s=10.0), 100.0, 120.0, id="slow first tokens"),
        pytest.param(promising(ttft_s=2.0, e2e_s=90.0), 900.0, 900.0, id="long answers"),
    ],
)
def test_a_request_stalls_long_after_every_promise_is_broken(
    slo: Slo, streamed_s: float, unstreamed_s: float
) -> None:
    limits = ProxyRequests().stall_limits(slo)

    assert limits == {"stalled_after_s": streamed_s, "unstreamed_stalled_after_s": unstreamed_s}


def test_limits_that_the_operator_configured_are_used() -> None:
    config = parse_config(CONFIG.format(options="stalled_after_s = 21"), here=Path())
    (sensor,) = (sensor.plugin for sensor in config.targets[0].sensors if sensor.name == "proxy_requests")

    assert sensor.stall_limits(config.targets[0].slo) == {
        "stalled_after_s": 21.0,
        "unstreamed_stalled_after_s": 200.0,
    }


@pytest.mark.parametrize("option", ["stalled_after_s", "unstreamed_stalled_after_s"])
def test_a_limit_that_a_promise_exceeds_is_refused(option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(CONFIG.format(options=f"{option} = 10"), here=Path())

    assert str(caught.value) == (
        f"[targets.sensors.proxy_requests] {option}: 10 s is not above 20 s, which the SLO promises: "
        "raise it, or omit it for 200"
    )
