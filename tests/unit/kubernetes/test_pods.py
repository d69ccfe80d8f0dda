"""Why a pod does not serve: the cause, and whether it lies outside the server."""

import pytest

from flettner.actuators.kubernetes.pods import Pod
from tests.support.kubernetes_documents import Json, pod


def ended(code: int, reason: str = "Error") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason}}


def waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, "message": message}}


@pytest.mark.parametrize(
    ("document", "says", "external"),
    [
        (pod(state=waiting("ImagePullBackOff", "not found")), "cannot be pulled: not found", True),
        (pod(state=waiting("CreateContainerConfigError", 'secret "x" not found')), 'secret "x"', True),
        (pod(state=waiting("CrashLoopBackOff"), last=ended(1), restarts=2), "exited with code 1", False),
        (pod(last=ended(137, "OOMKilled"), restarts=1), "out of memory", False),
        (pod(state=ended(139)), "SIGSEGV", False),
        (pod(phase="Failed", reason="Evicted", message="low on memory"), "evicted", True),
        (pod(phase="Failed", reason="NodeLost"), "lost with its node", True),
        (pod(phase="Failed", reason="Unknown"), "failed (Unknown)", True),
    ],
)
def test_names_the_cause(document: Json, says: str, external: bool) -> None:
    fault = Pod.parse(document, "server").fault()

    assert fault is not None
    assert says in fault.why
    assert fault.external == external


def beside(name: str, state: Json, last: Json | None = None) -> Json:
    return {"name": name, "image": "busybox", "state": state, "lastState": last or {}}


STARTING = waiting("PodInitializing")
CRASHES = (waiting("CrashLoopBackOff"), ended(1))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (
            pod(state=STARTING, initContainerStatuses=[beside("fetch", *CRASHES)]),
            "the init container fetch: it ends with code 1 again and again",
        ),
        (
            pod(state=STARTING, initContainerStatuses=[beside("fetch", waiting("ImagePullBackOff", "gone"))]),
            "the init container fetch: image busybox cannot be pulled: gone",
        ),
        (
            pod(ready=False, containerStatuses=[beside("server", {"running": {}}), beside("auth", *CRASHES)]),
            "the container auth: it ends with code 1 again and again",
        ),
    ],
    ids=["init container", "image of an init container", "sidecar"],
)
def test_names_the_container_that_keeps_the_server_from_serving(document: Json, says: str) -> None:
    fault = Pod.parse(document, "server").fault()

    assert fault is not None
    assert says in fault.why
    assert fault.external


@pytest.mark.parametrize(
    "document",
    [
        pod(),
        pod(state=waiting("ContainerCreating")),
        pod(state=waiting("ErrImagePull")),
        pod(state=STARTING, initContainerStatuses=[beside("fetch", ended(1))]),
        pod(initContainerStatuses=[beside("fetch", ended(0, "Completed"), ended(1))]),
        pod(initContainerStatuses=[beside("proxy", {"running": {}}, ended(1))]),
    ],
)
def test_a_pod_that_may_yet_serve_has_no_fault(document: Json) -> None:
    assert Pod.parse(document, "server").fault() is None


def test_the_log_names_the_cause_of_an_exit() -> None:
    fault = Pod.parse(pod(state=ended(1)), "server").fault(["ValueError: no such model"])

    assert fault is not None
    assert fault.why.endswith("ValueError: no such model")


def test_an_unschedulable_pod_says_why() -> None:
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}]

    assert Pod.parse(pod(phase="Pending", conditions=conditions), "server").unschedulable == message


def test_an_address_of_ipv6_has_brackets() -> None:
    assert Pod.parse(pod(podIP="fd00::1"), "server").address(8000) == "[fd00::1]:8000"
    assert Pod.parse(pod(podIP="10.0.0.1"), "server").address(8000) == "10.0.0.1:8000"
