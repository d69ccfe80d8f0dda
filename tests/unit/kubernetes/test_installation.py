"""The values of the chart for the Deployments of a namespace."""

from pathlib import Path

import yaml

from flettner.actuators.kubernetes.plugin import KubernetesPlugin
from flettner.agent.config import loader
from flettner.agent.domain.model import Server
from flettner.agent.plugins.installation import FoundTarget
from tests.support.helm import manifests, of_kind


def target(name: str) -> FoundTarget:
    return FoundTarget(
        name=name,
        description=f"kubernetes {name}: a model",
        server=Server(name=name, setting={}),
        options={"deployments": [name], "namespace": "chat"},
    )


def test_each_deployment_is_a_target_with_a_port_of_its_own() -> None:
    made = KubernetesPlugin.make_installation([target("one"), target("two")])
    documents = manifests(yaml.safe_load(made.text))
    config = loader.parse_config(
        of_kind("ConfigMap", documents)["data"]["flettner.toml"], here=Path("/etc/flettner")
    )

    assert [target.name for target in config.targets] == ["one", "two"]
    assert [str(target.listen) for target in config.targets] == ["0.0.0.0:8080", "0.0.0.0:8180"]
    assert config.mode == "advise"
    ports = [port["port"] for port in of_kind("Service", documents)["spec"]["ports"]]
    assert ports == [8080, 8180]
    assert made.config in made.text.replace("\n  ", "\n")
