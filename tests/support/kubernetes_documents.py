"""Documents of a Kubernetes API server, as `kubectl get -o json` shows them."""

from typing import Any

Json = dict[str, Any]


def deployment(
    name: str = "vllm",
    *,
    command: list[str] | None = None,
    args: list[str] | None = None,
    env: list[Json] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    replicas: int = 1,
    sidecar: bool = False,
) -> Json:
    """A Deployment with the pod labels app=NAME and team=search, and one GPU for each pod."""
    container: Json = {
        "name": "server",
        "image": "vllm/vllm-openai:v0.32.0",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    container |= {"command": command} if command else {}
    container |= {"args": ["--model", "m", "--max-num-seqs", "8"] if args is None else args}
    container |= {"env": env} if env else {}
    proxy = {"name": "proxy", "image": "envoyproxy/envoy", "args": ["-c", "envoy.yaml"]}
    return {
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "labels": labels or {},
            "annotations": annotations or {},
            "resourceVersion": "7",
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name, "team": "search"}},
                "spec": {"containers": [proxy, container] if sidecar else [container]},
            },
        },
    }


def pod(
    *,
    phase: str = "Running",
    ready: bool = True,
    state: Json | None = None,
    last: Json | None = None,
    restarts: int = 0,
    **status: object,
) -> Json:
    """A pod; its container `server` is in `state`, and `last` is how it ended before."""
    own = {
        "name": "server",
        "image": "vllm/vllm-openai:v0.32.0",
        "restartCount": restarts,
        "state": state or {"running": {}},
        "lastState": last or {},
    }
    return {
        "metadata": {"name": "vllm-1", "uid": "u1", "creationTimestamp": "2026-11-01T12:00:00Z"},
        "status": {
            "phase": phase,
            "podIP": "10.0.0.7",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [own],
            **status,
        },
    }
