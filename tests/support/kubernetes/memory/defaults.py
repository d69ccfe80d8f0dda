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
    found = deepcopy(document)
    if plural == "deployments":
        _check_deployment(found)
        spec = found["spec"] = _DEPLOYMENT | found["spec"]
        if spec["strategy"].get("type") == "Recreate":
            spec["strategy"] = {"type": "Recreate"}
        spec["template"]["metadata"] = {"creationTimestamp": None, **spec["template"].get("metadata", {})}
        spec["template"]["spec"] = _pod_spec(spec["template"]["spec"])
    elif plural == "pods":
        found["spec"] = _pod_spec(found["spec"])
    elif plural == "services":
        found["spec"] = {"sessionAffinity": "None", "type": "ClusterIP"} | found["spec"]
        for port in found["spec"].get("ports", ()):
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port["port"])
    return found


def _check_deployment(document: Json) -> None:
    selected = document["spec"]["selector"].get("matchLabels") or {}
    labels = document["spec"]["template"].get("metadata", {}).get("labels") or {}
    if not selected.items() <= labels.items():
        raise InvalidError("spec.template.metadata.labels: `selector` does not match template `labels`")
    names = [one.get("name") for one in document["spec"]["template"]["spec"]["containers"]]
    if not names or not all(names):
        raise InvalidError("spec.template.spec.containers: Required value")
    replicas = document["spec"].get("replicas", 1)
    if not isinstance(replicas, int) or replicas < 0:
        raise InvalidError(f"spec.replicas: Invalid value: {replicas}")


def _pod_spec(given: Json) -> Json:
    spec: dict[str, Any] = _POD | given
    spec["containers"] = [_container(one) for one in spec["containers"]]
    return spec


def _container(given: Json) -> Json:
    found = _CONTAINER | given
    resources = found["resources"]
    if "limits" in resources:  # what is not requested is requested as limited
        found["resources"] = resources | {"requests": resources["limits"] | resources.get("requests", {})}
    for kind in ("readinessProbe", "livenessProbe", "startupProbe"):
        if kind in found:
            found[kind] = _PROBE | found[kind]
            if "httpGet" in found[kind]:
                found[kind]["httpGet"] = {"scheme": "HTTP"} | found[kind]["httpGet"]
    for port in found.get("ports", ()):
        port.setdefault("protocol", "TCP")
    return found
