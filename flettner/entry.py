"""The commands, with the packages of this installation: names such as `agent` are common.

A folder of PYTHONPATH, or the current one under `python -m`, comes before the installation in `sys.path`, and
may hold another `agent`. So the names of PACKAGES are found in the installation only.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
PACKAGES = frozenset(
    {
        "actuators",
        "agent",
        "authenticators",
        "docker_engine",
        "docker_proxy",
        "kubernetes_api",
        "lint",
        "notifiers",
        "performance_model",
        "policies",
        "sensors",
        "simulator",
        "flettner_vllm",
        "vllm_facts",
    }
)


class OwnPackages:
    """A finder of `sys.meta_path`."""

    @staticmethod
    def find_spec(
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG004 - as importlib calls it
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(ROOT)]) if path is None and name in PACKAGES else None


def flettner() -> int:
    sys.meta_path.insert(0, OwnPackages)
    from agent.main import main  # noqa: PLC0415 - found by OwnPackages

    return main()


def docker_proxy() -> int:
    sys.meta_path.insert(0, OwnPackages)
    from docker_proxy.main import main  # noqa: PLC0415 - found by OwnPackages

    return main()
