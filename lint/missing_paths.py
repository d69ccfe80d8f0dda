"""The path of a flag that an error says is not there. Pure."""

import re
from collections.abc import Iterator

from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.values import spell_flag

_NOT_THERE = re.compile(
    r"does(?:n't| not) exist|No such file or directory|\bnot found\b|(?:can't|cannot|could not|couldn't) find"
    r"|is not a (?:valid )?(?:directory|file|path)|Repo id must be in the form",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(r"[\s\"'=,:{}\[\]]+")
_ROOTED = ("/", "./", "../", "~")  # a relative path without them may be a name on a hub
_FILE = re.compile(r"\.(?:jinja2?|json|ya?ml|toml|py|pem|crt|key|gguf)$")
_CACHED = re.compile(r"/models--(?P<owner>[\w.-]{1,96}?)--(?P<name>[\w.-]{1,96})$")
_FOLDERS = frozenset({"model", "tokenizer", "hf_config_path", "speculative_config"})


def describe_missing_path(error: str, config: ServeConfig) -> str:
    """What to do about the first path of the command that the error says is not there; "" for none."""
    if not _NOT_THERE.search(error):
        return ""
    for knob, path in _paths(config):
        if re.search(rf"(?<![\w./~-]){re.escape(path)}(?![\w/-])", error):
            return _advise(knob, path)
    return ""


def _paths(config: ServeConfig) -> Iterator[tuple[str, str]]:
    for knob, value in config.setting.items():
        for word in _SEPARATOR.split(str(value)):
            path = word.rstrip("/") or word
            if len(path) > 1 and (path.startswith(_ROOTED) or _FILE.search(path)):
                yield knob, path


def _advise(knob: str, path: str) -> str:
    if knob in _FOLDERS and (cached := _CACHED.search(path)):
        return (
            f"{path[:120]} is the folder of a repository in the hub's cache, which has no config.json "
            "itself: give the folder of a revision below it (snapshots/…), or the name "
            f"{cached['owner']}/{cached['name']} with HF_HOME (or HF_HUB_CACHE) at this cache"
        )
    flag = "the model's path" if knob == "model" else f"the path of {spell_flag(knob)}"
    where = (
        f"{flag}, {path[:120]}, is not there where vLLM runs: in a container it is the path inside, so mount "
        "the folder and give that path (docker run -v HOST:PATH, a volume in Kubernetes, on each host)"
    )
    parts = [where]
    if not path.startswith(("/", "~")):
        parts.append("a relative path begins at the working folder")
    if path.startswith("examples/"):
        parts.append(
            "examples/ is in vLLM's repository and images, not in its Python package: download the file"
        )
    if knob in _FOLDERS and not _FILE.search(path):
        parts.append("the folder itself holds config.json (in the cache of a hub it is below snapshots/)")
    return "; ".join(parts)
