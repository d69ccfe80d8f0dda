"""Images built without a registry: they hold a `vllm` command; its programs are bound from this host.

Their entry point is that of vllm/vllm-openai: `["vllm", "serve"]`, the flags are the command's.
"""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker

from tests.support.real_vllm import ENVIRONMENT, REPOSITORY, real_vllm

MODEL = "/models/tiny"  # of the real vLLM's image

_PATH = "/opt/vllm/bin:/usr/bin:/bin"
SIMULATOR = """#!/bin/sh
shift # "serve"
exec {python} -m flettner.simulator.server "$@"
"""
_REAL = """#!/bin/sh
shift # "serve"
case "${{1:--}}" in
-*) ;;
*) model=$1; shift; set -- --model "$model" "$@" ;;
esac
exec {python} -m vllm.entrypoints.openai.api_server "$@"
"""
_PYTHON = """#!/bin/sh
exec {python} "$@"
"""
_SHM = 1 << 30  # vLLM asks for 160 MiB, Docker gives 64
_USERS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUPS = "root:x:0:\nnogroup:x:65534:\n"
_FOLDERS = (
    "dev",
    "etc",
    "opt/vllm/bin",
    "proc",
    "root",
    "run",
    "sbin",
    "sys",
    "tmp",
    "usr",
    "var",
    "workspace",
)
_LINKS = {
    "bin": "usr/bin",
    "lib": "usr/lib",
    "lib64": "usr/lib64",
}  # /sbin is real: Docker's init is put there


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """`tag` is here; a container of it serves with `flags`, and needs `binds` and what else `host` has."""

    tag: str
    binds: tuple[str, ...]  # "host:container:ro"
    flags: tuple[str, ...]
    host: dict[str, Any] = field(default_factory=dict)  # of HostConfig


def simulator_image(api: docker.APIClient) -> Image:
    """Serves within a second, without a model."""
    python = Path(sys.executable)
    tag = _made(api, "simulator", python, SIMULATOR, {"PYTHONPATH": str(REPOSITORY)})
    flags = ("tiny", "--sim-start-s", "0.2")
    return Image(tag=tag, binds=_binds(python, REPOSITORY), flags=flags)


def real_vllm_image(api: docker.APIClient, release: str = "") -> Image:
    """vLLM for the CPU with a tiny model: a start takes a minute. What it caches is kept under .cache."""
    vllm = real_vllm(release)
    cache = REPOSITORY / ".cache" / "vllm-home"
    cache.mkdir(parents=True, exist_ok=True)
    tag = _made(api, "real", vllm.python, _REAL, {**ENVIRONMENT, "VLLM_CPU_OMP_THREADS_BIND": "nobind"})
    binds = (*_binds(vllm.python), f"{vllm.model}:{MODEL}:ro", f"{cache}:/root/.cache")
    flags = (MODEL, "--served-model-name", "tiny", "--max-model-len", "2048", "--enforce-eager")
    return Image(tag=tag, binds=binds, flags=flags, host={"ShmSize": _SHM})


def _made(api: docker.APIClient, name: str, python: Path, vllm: str, env: dict[str, str]) -> str:
    """The tag of an image that is made once for each content."""
    files = {
        "opt/vllm/bin/vllm": vllm.format(python=python),
        "opt/vllm/bin/python3": _PYTHON.format(python=python),
        "etc/passwd": _USERS,
        "etc/group": _GROUPS,
    }
    everything = {
        "PATH": _PATH,
        "HOME": "/root",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    } | env
    changes = [
        'ENTRYPOINT ["vllm","serve"]',
        "WORKDIR /workspace",
        *(f"ENV {key}={value}" for key, value in everything.items()),
    ]
    archive = _tar(files)
    content = hashlib.sha256(archive + json.dumps(changes).encode()).hexdigest()[:12]
    repository = f"flettner-test/{name}"
    if not api.images(f"{repository}:{content}"):
        api.import_image_from_data(archive, repository=repository, tag=content, changes=changes)
    return f"{repository}:{content}"


def _tar(files: dict[str, str]) -> bytes:
    """The same bytes for the same files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type = tarfile.DIRTYPE
            folder.mode = 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        for name, target in _LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name, text in files.items():
            file = tarfile.TarInfo(name)
            file.size, file.mode = len(text), 0o755 if "/bin/" in name else 0o644
            tar.addfile(file, io.BytesIO(text.encode()))
    return packed.getvalue()


def _binds(python: Path, *more: Path) -> tuple[str, ...]:
    """Read-only, at their own paths: the host's /usr, and where this interpreter and its packages lie."""
    script = "import sys; print(sys.prefix, sys.base_prefix, sep='\\n')"
    output = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout
    roots = {Path("/usr"), *map(Path, output.split("\n")[:2]), *more}
    return tuple(f"{root}:{root}:ro" for root in sorted(_outermost([*roots])))


def _outermost(roots: Sequence[Path]) -> list[Path]:
    return [root for root in roots if not any(root.is_relative_to(other) for other in roots if other != root)]
