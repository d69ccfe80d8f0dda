"""The peculiarities of a StatefulSet: claims of each pod, ordinals, and the order of starts and updates.

Green is a Deployment there, too: its pods get claims of their own by ephemeral volumes, which end with them.
The functions ask for fields that only a StatefulSet has, so that they find nothing in a Deployment.
"""

from collections.abc import Iterable
from copy import deepcopy
from pathlib import PurePosixPath

from flettner.actuators.kubernetes.workload import Workload
from flettner.clients.kubernetes.documents import Json

_READ_AT_START = ("model", "tokenizer", "hf_config_path", "chat_template")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_ORDINALS = ("apps.kubernetes.io/pod-index", "statefulset.kubernetes.io/pod-name")
"""Labels that the controller gives each pod of a StatefulSet, and no pod of a Deployment."""


def find_obstacles(workload: Workload) -> list[str]:
    """Return why a Deployment cannot do what its pods do, or why new flags would not reach all of them."""
    spec = workload.document["spec"]
    status = workload.document.get("status") or {}
    update = spec.get("updateStrategy") or {}
    obstacles = [
        f"{why}: fill it by an init container, or use one claim for all pods" for why in _missing(workload)
    ]
    if int(workload.serve.setting.get("nnodes") or 1) > 1 or _knows_its_ordinal(workload.container_document):
        obstacles.append(
            "its pods differ from each other, and those of green would not: one engine is one pod here"
        )
    if (update.get("rollingUpdate") or {}).get("partition"):
        obstacles.append(
            "its updateStrategy has a partition, below which pods keep their old flags: set it to 0"
        )
    older = status.get("updatedReplicas", 0) < status.get("replicas", 0)
    if update.get("type") == "OnDelete" and older and workload.replicas:
        obstacles.append(
            "its pods are older than its template (updateStrategy OnDelete): delete them one by one"
        )
    return obstacles


def add_claims(template: Json, workload: Workload) -> None:
    """Give the template of green's pods an ephemeral volume for each claim that the workload's pods have."""
    claims = _claim_templates(workload)
    names = {claim["metadata"]["name"] for claim in claims}
    if claims:
        others = [volume for volume in template["spec"].get("volumes") or () if volume["name"] not in names]
        template["spec"]["volumes"] = [*others, *map(_ephemeral, claims)]


def describe_claims(workload: Workload) -> list[str]:
    """Return the claims that green's pods get for themselves, such as "cache (100Gi)"."""
    return [
        f"{claim['metadata']['name']} ({claim['spec']['resources']['requests']['storage']})"
        for claim in _claim_templates(workload)
    ]


def count_turns(workload: Workload) -> int:
    """How many pods start, or end, one after the other."""
    one_by_one = workload.document["spec"].get("podManagementPolicy") == "OrderedReady"
    return workload.usual_replicas if one_by_one else 1


def _missing(workload: Workload) -> Iterable[str]:
    """Yield what green's new claims lack: it is on a claim of each pod, and no init container writes it."""
    claims = {claim["metadata"]["name"] for claim in _claim_templates(workload)} - _filled(workload)
    mounts = {
        PurePosixPath(mount["mountPath"]): mount["name"]
        for mount in workload.container_document.get("volumeMounts") or ()
        if mount["name"] in claims
    }
    for knob in _READ_AT_START:
        path = PurePosixPath(str(workload.serve.setting.get(knob, "")))
        for place, claim in mounts.items():
            if path.is_relative_to(place):
                yield f"{knob} {path} is on the claim {claim} of each pod, and green's claims begin empty"
    env = dict(line.partition("=")[::2] for line in workload.serve.env)
    if mounts and any(env.get(name, "").lower() in {"1", "true", "yes", "on"} for name in _OFFLINE):
        yield "it may not download (HF_HUB_OFFLINE), and the claims of green's pods begin empty"


def _filled(workload: Workload) -> set[str]:
    """Return the volumes that init containers mount."""
    starting = workload.template["spec"].get("initContainers") or ()
    return {mount["name"] for container in starting for mount in container.get("volumeMounts") or ()}


def _knows_its_ordinal(container: Json) -> bool:
    paths = [
        (variable.get("valueFrom") or {}).get("fieldRef", {}).get("fieldPath", "")
        for variable in container.get("env") or ()
    ]
    return any(label in path for path in paths for label in _ORDINALS)


def _claim_templates(workload: Workload) -> list[Json]:
    return list(workload.document["spec"].get("volumeClaimTemplates") or ())


def _ephemeral(claim: Json) -> Json:
    """Return the volume of a pod whose claim the controller creates and deletes with the pod."""
    metadata = {key: claim["metadata"][key] for key in ("labels", "annotations") if key in claim["metadata"]}
    wanted = {"metadata": metadata, "spec": deepcopy(claim["spec"])}
    return {"name": claim["metadata"]["name"], "ephemeral": {"volumeClaimTemplate": wanted}}
