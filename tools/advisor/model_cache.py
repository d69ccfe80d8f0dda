"""The config.json of a model in the local cache of Hugging Face."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_REVISION = re.compile(r"[\w-][\w./-]*")


def find_cached_config(
    name: str, env: Mapping[str, str], *, revision: str = "", folder: str = ""
) -> Path | None:
    """The newest config.json of `OWNER/NAME` that is cached; `folder`: vLLM's --download-dir."""
    revision = revision or "main"
    if not _REPOSITORY.fullmatch(name) or not _REVISION.fullmatch(revision) or ".." in revision:
        return None
    for cache in _caches(env, folder):
        model = cache / f"models--{name.replace('/', '--')}"
        config = model / "snapshots" / _commit(model, revision) / "config.json"
        if config.is_file():
            return config
    return None


def _caches(env: Mapping[str, str], folder: str) -> Iterator[Path]:
    """Return the cache folders in the order of huggingface_hub, after vLLM's --download-dir."""
    if folder:
        yield Path(folder)
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(variable):
            yield Path(env[variable]).expanduser()
    if env.get("HF_HOME"):
        yield Path(env["HF_HOME"]).expanduser() / "hub"
    if env.get("XDG_CACHE_HOME"):
        yield Path(env["XDG_CACHE_HOME"]) / "huggingface/hub"
    if env.get("HOME"):
        yield Path(env["HOME"]) / ".cache/huggingface/hub"


def _commit(model: Path, revision: str) -> str:
    """The commit that a branch or tag points to; a commit is its own name."""
    try:
        return (model / "refs" / revision).read_text().strip() or revision
    except (OSError, ValueError):
        return revision
