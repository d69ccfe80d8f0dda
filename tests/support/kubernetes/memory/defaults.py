"""Fields that the API server adds to new objects, and what it refuses."""

from copy import deepcopy
from typing import Any

from tests.support.kubernetes.api import Json

_DEPLOYMENT: Json = {
    "replicas": 1,
    "revisionHistoryLimit": 10,
    "progressDeadlineSeconds": 600,
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
}
_POD: Json = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
}
_CONTAINER: Json = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "IfNotPresent",
}
_PROBE: Json = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


class InvalidError(Exception):
    """The object is refused (422)."""


def with_defaults(plural: str, document: Json) -> Json:
    """Return the object as it is stored."""
    stored = deepcopy(document)
    if plural == "deployments":
        _check_deployment(stored)
        spec = stored["spec"] = _DEPLOYMENT | stored["spec"]
        if spec["strategy"].get("type") == "Recreate":
            spec["strategy"] = {"type": "Recreate"}
        spec["template"]["metadata"] = {"creationTimestamp": None, **spec["template"].get("metadata", {})}
        spec["template"]["spec"] = _pod_spec(spec["template"]["spec"])
    elif plural == "pods":
        stored["spec"] = _pod_spec(stored["spec"])
    elif plural == "services":
        stored["spec"] = {"sessionAffinity": "None", "type": "ClusterIP"} | stored["spec"]
        for port in stored["spec"].get("ports", ()):
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port["port"])
    return stored


def _check_deployment(document: Json) -> None:
    selected = document["spec"]["selector"].get("matchLabels") or {}
    labels = document["spec"]["template"].get("metadata", {}).get("labels") or {}
    if not selected.items() <= labels.items():
        raise InvalidError("spec.template.metadata.labels: `selector` does not match template `labels`")
    names = [item.get("name") for item in document["spec"]["template"]["spec"]["containers"]]
    if not names or not all(names):
        raise InvalidError("spec.template.spec.containers: Required value")
    replicas = document["spec"].get("replicas", 1)
    if not isinstance(replicas, int) or replicas < 0:
        raise InvalidError(f"spec.replicas: Invalid value: {replicas}")


def _pod_spec(given: Json) -> Json:
    spec: dict[str, Any] = _POD | given
    spec["containers"] = [_container(item) for item in spec["containers"]]
    return spec


def _container(given: Json) -> Json:
    container = _CONTAINER | given
    resources = container["resources"]
    if "limits" in resources:  # what is not requested is requested as limited
        container["resources"] = resources | {"requests": resources["limits"] | resources.get("requests", {})}
    for kind in ("readinessProbe", "livenessProbe", "startupProbe"):
        if kind in container:
            container[kind] = _PROBE | container[kind]
            if "httpGet" in container[kind]:
                container[kind]["httpGet"] = {"scheme": "HTTP"} | container[kind]["httpGet"]
    for port in container.get("ports", ()):
        port.setdefault("protocol", "TCP")
    return container
