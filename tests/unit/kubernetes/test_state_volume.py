"""Which volumes of a pod outlive it, by lines of /proc/self/mountinfo as kubelets make them."""

from pathlib import Path

import pytest

from flettner.actuators.kubernetes.state_volume import describe_volatile, find_volatile

STATE = Path("/var/lib/flettner/state")
ROOT = "1 0 0:50 / / rw,relatime master:9 - overlay overlay rw,lowerdir=/a,upperdir=/b,workdir=/c"
POD = "/var/lib/kubelet/pods/5d0b7a1e-0000-4000-8000-000000000000/volumes"
EMPTY_DIR = f"2 1 8:1 {POD}/kubernetes.io~empty-dir/state /var/lib/flettner rw - ext4 /dev/sda1 rw"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("", "the container's own file system"),
        (
            f"2 1 8:1 {POD}/kubernetes.io~empty-dir/state /var/lib/flettner rw - ext4 /dev/sda1 rw",
            "an emptyDir volume",
        ),
        (
            "2 1 8:2 /pods/5/volumes/kubernetes.io~empty-dir/a /var/lib/flettner rw shared:7 - xfs /dev/b rw",
            "an emptyDir volume",
        ),
        ("2 1 0:99 / /var/lib/flettner rw - tmpfs tmpfs rw,size=65536k", "memory"),
        ("2 1 259:3 / /var/lib/flettner rw,relatime - ext4 /dev/nvme1n1 rw", ""),
        ("2 1 0:71 / /var/lib/flettner rw - nfs4 10.0.0.1:/exports/pvc-1 rw,vers=4.2", ""),
        ("2 1 8:1 /opt/local-path-provisioner/pvc-1 /var/lib/flettner rw - ext4 /dev/sda1 rw", ""),
        (
            f"2 1 8:1 {POD}/kubernetes.io~empty-dir/state /var/lib/trim rw - ext4 /dev/sda1 rw",
            "the container's own file system",
        ),
        (
            f"{EMPTY_DIR}\n3 2 259:3 / /var/lib/flettner rw - ext4 /dev/nvme1n1 rw",
            "",
        ),
    ],
    ids=[
        "nothing",
        "emptyDir",
        "emptyDir on a disk of its own",
        "memory",
        "block",
        "nfs",
        "local path",
        "elsewhere",
        "covered",
    ],
)
def test_each_kind_of_volume(line: str, kind: str) -> None:
    assert find_volatile(STATE, f"{ROOT}\n{line}".strip()) == kind


def test_a_mount_point_may_have_spaces() -> None:
    line = r"2 1 0:99 / /var/my\040state rw - tmpfs tmpfs rw"

    assert find_volatile(Path("/var/my state/a"), f"{ROOT}\n{line}") == "memory"


def test_outside_a_pod_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    assert describe_volatile(Path("/proc")) == ""


def test_in_a_pod_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")

    assert 'PersistentVolumeClaim there, or use mode = "advise"' in describe_volatile(Path("/dev/shm"))  # noqa: S108
