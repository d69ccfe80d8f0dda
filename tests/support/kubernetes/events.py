"""Events about pods, as the scheduler and the kubelet write them."""

import time

from tests.support.kubernetes.api import Api, ApiError, Json


def now() -> str:
    """As the API writes a time: whole seconds in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


async def record(
    api: Api, pod: Json, component: str, reason: str, message: str, *, warns: bool = True
) -> None:
    """A new Event each time: Kubernetes would count equal ones in one object."""
    about = pod["metadata"]
    event: Json = {
        "metadata": {"generateName": f"{about['name']}."},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            **{key: about[key] for key in ("name", "namespace", "uid", "resourceVersion")},
        },
        "type": "Warning" if warns else "Normal",
        "reason": reason,
        "message": message,
        "source": {"component": component, "host": pod["spec"].get("nodeName", "")},
        "firstTimestamp": now(),
        "lastTimestamp": now(),
        "count": 1,
    }
    try:
        await api.create(f"/api/v1/namespaces/{about['namespace']}/events", event)
    except ApiError as error:
        if error.status not in {403, 404}:  # the namespace is being deleted
            raise
