"""The operator's Deployment."""

from tests.simulation.kubernetes.scenario import ClusterScenario
from tests.simulation.setup import BLUE
from tests.support.kubernetes.api import Json
from tests.support.kubernetes.manifests import container, controlled_by, deployment

ARGO_CD = {"argocd.argoproj.io/instance": "chat"}
KSERVE = controlled_by("serving.kserve.io/v1beta1", "InferenceService", "chat")


def manifest(name: str, scenario: ClusterScenario, seqs: object = BLUE["max_num_seqs"]) -> Json:
    args = ("--model", str(BLUE["model"]), "--max-num-seqs", str(seqs))
    document = deployment(name, container(*args, gpus=1), replicas=scenario.replicas)
    if scenario.writer == "Argo CD":
        document["metadata"]["labels"] |= ARGO_CD
    if scenario.writer == "KServe":
        document["metadata"]["ownerReferences"] = [KSERVE]
    return document


def args_of(document: Json) -> object:
    return document["spec"]["template"]["spec"]["containers"][0].get("args")
