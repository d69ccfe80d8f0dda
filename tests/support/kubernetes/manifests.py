"""Documents of the objects that tests create."""

import os
from collections.abc import Sequence

from tests.support.kubernetes.api import Json

IMAGE = os.environ.get("FLETTNER_TEST_IMAGE", "vllm/vllm-openai:v0.11.0")
FLAGS = ("tiny", "--sim-start-s", "0.2")
PORT = 8000


def container(*args: str, image: str = IMAGE, gpus: int = 0, **more: object) -> Json:
    """A vLLM server with probes every second; `more` goes over all else."""
    health = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1, "timeoutSeconds": 5}
    document: Json = {
        "name": "vllm",
        "image": image,
        "args": list(args or FLAGS),
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": health,
    }
    if gpus:
        document["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return document | more


def deployment(
    name: str,
    *containers: Json,
    replicas: int = 1,
    grace_s: int = 5,
    labels: Json | None = None,
    **pod: object,
) -> Json:
    """`pod`: of the pod's spec. Its pods have the label `app`, which its selector asks for."""
    selected = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": dict(selected)},  # the selector never changes
        "spec": {
            "replicas": replicas,
            "progressDeadlineSeconds": 60,
            "selector": {"matchLabels": selected},
            "template": {
                "metadata": {"labels": selected | (labels or {})},
                "spec": {
                    "containers": list(containers or (container(),)),
                    "terminationGracePeriodSeconds": grace_s,
                    **pod,
                },
            },
        },
    }


def statefulset(name: str, *containers: Json, claims: Sequence[Json] = (), **more: object) -> Json:
    """As `deployment` makes it; `claims`: templates; `more`: of the spec, such as `podManagementPolicy`."""
    of_deployment = deployment(name, *containers)["spec"]
    shared = {key: of_deployment[key] for key in ("selector", "template")}
    spec: Json = {"replicas": 1, "serviceName": name, "volumeClaimTemplates": list(claims), **shared, **more}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}


def claim(name: str, storage: str = "1Gi") -> Json:
    """The template of a claim."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}}
    return {"metadata": {"name": name}, "spec": spec}


def autoscaler(name: str, kind: str = "Deployment", *, least: int, most: int = 4, keda: bool = False) -> Json:
    """A HorizontalPodAutoscaler of the workload with its name, as people or KEDA make it."""
    target = {"apiVersion": "apps/v1", "kind": kind, "name": name}
    owners = [controlled_by("keda.sh/v1alpha1", "ScaledObject", name)] if keda else []
    return {
        "metadata": {"name": name, "ownerReferences": owners},
        "spec": {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": most},
    }


def controlled_by(version: str, kind: str, name: str) -> Json:
    """The owner reference of an object that the controller of a custom resource makes."""
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}


def headless_service(name: str, selector: Json, port: int = PORT) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": "None",
            "selector": selector,
            "ports": [{"name": "http", "port": port, "targetPort": PORT}],
        },
    }


def rule(groups: Sequence[str], resources: Sequence[str], verbs: Sequence[str]) -> Json:
    """Of a Role; the group "" holds pods, Services and ConfigMaps."""
    return {"apiGroups": list(groups), "resources": list(resources), "verbs": list(verbs)}
