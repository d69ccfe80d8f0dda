"""The operator's Deployment."""

from tests.simulation.kubernetes.scenario import ClusterScenario
from tests.simulation.setup import BLUE
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.manifests import container, deployment

ARGO_CD = {"argocd.argoproj.io/instance": "chat"}


def manifest(name: str, scenario: ClusterScenario, seqs: object = BLUE["max_num_seqs"]) -> Json:
    args = ("--model", str(BLUE["model"]), "--max-num-seqs", str(seqs))
    found = deployment(name, container(*args, gpus=1), replicas=scenario.replicas)
    found["metadata"]["labels"] = found["metadata"]["labels"] | (ARGO_CD if scenario.gitops else {})
    return found
