"""The programs that `scripts/kubernetes build` made."""

import subprocess
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


@cache
def programs() -> Path | None:
    """The folder of etcd, kube-apiserver and kube-controller-manager; None where they have not been built."""
    done = subprocess.run(
        [REPOSITORY / "scripts" / "kubernetes"], check=False, capture_output=True, text=True
    )
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def to_collect() -> list[str]:
    """A `collect_ignore_glob`: without the programs no test of a folder exists."""
    return [] if programs() else ["test_*.py"]
