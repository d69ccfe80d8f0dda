"""The options of the engine, before any API server is asked."""

from pathlib import Path

import pytest

from flettner.actuators.kubernetes.plugin import KubernetesPlugin
from tests.support.kubernetes import kubeconfig


@pytest.fixture
def config(tmp_path: Path) -> Path:
    ca = tmp_path / "ca.crt"
    ca.touch()
    path = tmp_path / "kubeconfig"
    return kubeconfig.write(path, url="https://10.0.0.1", ca=ca, user="me", token="", namespace="chat")


def servers(**options: str) -> tuple[tuple[str, ...], ...]:
    return KubernetesPlugin(deployments=("vllm",), **options).exclusive  # type: ignore[arg-type]


def test_a_namespace_that_is_inherited_is_the_one_that_is_named(config: Path) -> None:
    inherited = servers(kubeconfig=str(config))

    assert inherited == (("deployments", "vllm", "https://10.0.0.1", "chat"),)
    assert servers(kubeconfig=str(config), namespace="chat", context="test") == inherited
    assert servers(kubeconfig=str(config), namespace="other") != inherited


def test_the_kubeconfig_of_the_environment_is_the_one_that_is_named(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(config))

    assert servers() == servers(kubeconfig=str(config))


def test_without_a_kubeconfig_the_options_tell_servers_apart(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")

    assert servers(kubeconfig=missing) == servers(kubeconfig=missing)
    assert servers(kubeconfig=missing) != servers(kubeconfig=missing, namespace="chat")
