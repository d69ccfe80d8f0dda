"""The options of Envoys in pods."""

import pytest

from flettner.actuators.envoy_deployment.plugin import EnvoyDeploymentPlugin


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"listen": "127.0.0.1:8080"}, "listen is in a pod"),
        ({"listen": "8080"}, "listen must be HOST:PORT"),
        ({"listen": "0.0.0.0:8082"}, "choose another one"),
        ({"deployment": "Proxy"}, "deployment must be the name of a Deployment"),
        ({"session_header": "x session"}, "session_header must be the name of a header"),
        ({"open_routes": ("v1/completions",)}, "no closed route is named 'v1/completions'"),
        ({"confirm_s": 0.0}, "must be above 0"),
        ({"hold_requests": 0}, "hold_requests must be at least 1"),
    ],
    ids=str,
)
def test_rejects_invalid_options(options: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        EnvoyDeploymentPlugin(**options)  # type: ignore[arg-type]


def test_the_sensor_of_requests_reads_from_the_pods() -> None:
    plugin = EnvoyDeploymentPlugin(deployment="other", namespace="chat")

    assert plugin.sensor_options["proxy_requests"] == {
        "deployment": "other",
        "namespace": "chat",
        "kubeconfig": "",
        "context": "",
    }


def test_the_hold_says_that_each_pod_has_its_own() -> None:
    held = EnvoyDeploymentPlugin(hold_requests=8).hold

    assert held is not None
    assert (held.requests, held.each) == (8, "pod of Envoy")
    assert EnvoyDeploymentPlugin(hold_s=0.0).hold is None
