"""The values of the Helm chart deploy/helm/flettner for the workloads that were found in a namespace."""

from collections.abc import Sequence
from json import dumps
from textwrap import indent

from flettner.actuators.kubernetes.workload import OPTIONS
from flettner.agent.plugins.installation import FoundTarget, Installation

FILE_NAME = "values.yaml"
NONE_FOUND = (
    "by the kubeconfig, or the ServiceAccount of this pod: set KUBECONFIG, choose the namespace with "
    "`kubectl config set-context --current --namespace NAME`, or scale the workload up"
)
_FIRST_PORT, _STEP = 8080, 100  # away from the ports of the pods themselves, 8081, 8082, 8090 and 8443
_HEAD = """\
# flettner for the namespace {namespace}. deploy/helm/flettner/values.yaml describes every value.
mode: advise # suggests only; "approve" also carries out what an operator approved

proxy:
  ports: {ports} # of the Service flettner-proxy: where the clients of each target ask from "approve" on

config: |
"""
_TARGET = """\
# {description}
[[targets]]
name = "{name}"
[targets.slo] # your latency objectives; without them only failures are detected
# ttft = {{ under = "500ms", share = 0.95 }} # to the first byte of the answer, for 95 % of the requests
# itl = {{ under = "60ms", share = 0.95 }}   # mean gap between the tokens of one request
[targets.engine]
kind = "kubernetes"
{option} = {names}
[targets.traffic]
kind = "envoy_deployment"
deployment = "flettner-proxy"
listen = "0.0.0.0:{port}"
"""


def make_installation(targets: Sequence[FoundTarget]) -> Installation:
    namespace = str(targets[0].options["namespace"])
    ports = [_FIRST_PORT + _STEP * index for index in range(len(targets))]
    config = "\n".join(
        _TARGET.format(
            description=target.description,
            name=target.name,
            option=option,
            names=dumps(target.options[option]),
            port=port,
        )
        for target, port in zip(targets, ports, strict=True)
        for option in OPTIONS.values()
        if option in target.options
    )
    at = f"--namespace {namespace}"
    return Installation(
        text=_HEAD.format(namespace=namespace, ports=dumps(ports)) + indent(config, "  "),
        config=config,
        next_steps=(
            "flettner token new --tokens-file tokens --role operator --name YOU",
            f"kubectl create secret generic flettner-tokens {at} --from-file=tokens",
            f"helm install flettner deploy/helm/flettner {at} --values FILE",
            f"kubectl exec {at} deployment/flettner -- flettner check /etc/flettner/flettner.toml",
        ),
    )
