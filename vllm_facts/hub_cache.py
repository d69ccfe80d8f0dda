"""Where the weights of the hub's models are kept."""

from collections.abc import Iterator, Mapping


def hub_caches(env: Mapping[str, str], download_dir: str = "") -> Iterator[str]:
    """The folders in the order in which vLLM and huggingface_hub look for a model.

    `download_dir`: vLLM's flag. Source: huggingface_hub/constants.py. Empty without any variable of them.
    """
    if download_dir:
        yield download_dir
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(variable):
            yield env[variable]
    if env.get("HF_HOME"):
        yield f"{env['HF_HOME']}/hub"
    if caches := cache_folder(env):
        yield f"{caches}/huggingface/hub"


def cache_folder(env: Mapping[str, str]) -> str | None:
    """The folder of all caches, below which each library has its own; None where it is not known."""
    home = env.get("HOME")
    return env.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else None)
