"""The programs that `scripts/kubernetes install` made."""

import subprocess
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


@cache
def programs() -> Path:
    """The folder of etcd, kube-apiserver and kube-controller-manager.

    Raises FileNotFoundError, with what to do, where they are missing.
    """
    done = subprocess.run(
        [REPOSITORY / "scripts" / "kubernetes"], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise FileNotFoundError(done.stderr.strip())
    return Path(done.stdout.strip())
