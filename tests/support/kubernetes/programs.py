"""The programs that `scripts/kubernetes build` made."""

import subprocess
from functools import cache
from pathlib import Path

from tests.support.kubernetes.borrowed import borrowed_file

REPOSITORY = Path(__file__).parents[3]


@cache
def programs() -> Path | None:
    """The folder of etcd, kube-apiserver and kube-controller-manager; None where they have not been built.

    None, too, where the tests have a borrowed cluster.
    """
    if borrowed_file():
        return None
    done = subprocess.run(
        [REPOSITORY / "scripts" / "kubernetes"], check=False, capture_output=True, text=True
    )
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def to_collect() -> list[str]:
    """A `collect_ignore_glob`: without any cluster no test of a folder exists."""
    return [] if programs() or borrowed_file() else ["test_*.py"]
