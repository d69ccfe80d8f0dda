"""Give a new server flettner's scheduler class, where its flags name it and nothing says where its socket is.

The class is one file that needs only vLLM. It is written below the state folder, beside a folder for the
control sockets, so that neither vLLM's environment nor its image needs one package more. A server that has
FLETTNER_CONTROL already has the class from its owner, and is left as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from flettner.agent.domain.ports import Site
from flettner.primitives.files import replace_file
from flettner.vllm_facts.live_limits import CONTROL, SCHEDULER_CLASS
from flettner.vllm_facts.values import Setting

_PYTHON_PATH = "PYTHONPATH"
_READABLE, _WRITABLE = 0o755, 0o777  # a container may run as any user; the state folder above is private
_FILES = ("__init__.py", "scheduler.py")


@dataclass(frozen=True, slots=True)
class SchedulerFolders:
    """`package`: goes into PYTHONPATH. `sockets`: has a control socket for each server."""

    package: Path
    sockets: Path

    def add_to(self, env: Mapping[str, str], server: str) -> dict[str, str]:
        """The environment with which `server` finds the class and opens its socket."""
        current = env.get(_PYTHON_PATH)
        path = f"{self.package}:{current}" if current else str(self.package)
        return {**env, _PYTHON_PATH: path, CONTROL: str(self.sockets / f"{server}.sock")}


def is_missing(setting: Setting, env: Mapping[str, str]) -> bool:
    """Whether this command line names the class and this environment has no control socket for it."""
    return setting.get("scheduler_cls") == SCHEDULER_CLASS and CONTROL not in env


def write_folders(site: Site) -> SchedulerFolders:
    """Write the class of this release, and make the folder of the sockets. Raises OSError."""
    folders = SchedulerFolders(site.state_dir / "scheduler", site.state_dir / "control")
    module = folders.package / "flettner_vllm"
    module.mkdir(parents=True, exist_ok=True)
    folders.sockets.mkdir(exist_ok=True)
    for folder, mode in (
        (folders.package, _READABLE),
        (module, _READABLE),
        (folders.sockets, _WRITABLE),
    ):
        folder.chmod(mode)
    for name in _FILES:
        replace_file(module / name, (files("flettner.flettner_vllm") / name).read_bytes())
        (module / name).chmod(0o644)
    return folders
