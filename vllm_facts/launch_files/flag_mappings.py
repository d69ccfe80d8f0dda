"""Flags as the keys of a YAML mapping: vLLM's `--config` file, and `engine_kwargs` of Ray Serve."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flettner.vllm_facts.flag_table import NAMES, ONE_WAY
from flettner.vllm_facts.launch_files.launch import Launch, Word
from flettner.vllm_facts.launch_files.yaml_nodes import (
    MAPPING,
    SCALAR,
    SEQUENCE,
    Node,
    entries,
    get,
    items,
    list_words,
    text_at,
    word_of,
)
from flettner.vllm_facts.meant_flags import meant_flags
from flettner.vllm_facts.releases.history import is_known_flag

_SERVE = (Word(text="vllm"), Word(text="serve"))
_TRUE, _FALSE = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off"})
_BOOL = "tag:yaml.org,2002:bool"
_LEAST_SHARE = 0.7  # of the keys that are flags
ADDRESS_KEYS = frozenset({"host", "port", "api_key", "uvicorn_log_level"})


_OF_REQUESTS = frozenset({"messages", "prompt", "input"})


def is_config(document: Node) -> bool:
    """Whether the mapping is a file for `vllm serve --config`: most of its keys are flags.

    The body of a request has a model and keys that are meant as flags, too.
    """
    keys = [name.replace("-", "_") for name, _, _ in entries(document)]
    if _OF_REQUESTS & set(keys):
        return False
    flags = [key for key in keys if key in NAMES or is_known_flag(key)]
    own = [key for key in flags if key not in ADDRESS_KEYS]
    meant = [key for key in keys if key in meant_flags()] if own else []
    return bool(own) and len(flags) + len(meant) >= _LEAST_SHARE * len(keys)


def read_config(document: Node) -> list[Launch]:
    """The server that `vllm serve --config FILE` starts."""
    start = document.start_mark.index
    return [Launch(name="--config", start=start, words=(*_SERVE, *words_of_mapping(document)))]


def words_of_mapping(node: Node | None, *, keeps_off: bool = False) -> list[Word]:
    """The flags of the keys. `keeps_off`: whatever is false turns a flag off; vLLM's file ignores some."""
    words: list[Word] = []
    for name, key, value in entries(node):
        flag = f"--{name}"
        if value.id == SEQUENCE:
            listed = list_words(value)
            words += [Word(text=flag), *listed] if listed else []
        elif value.id == MAPPING:
            words += [Word(text=flag), Word(text=json.dumps(_plain(value)))]
        elif value.tag == _BOOL or str(value.value).lower() in _TRUE | _FALSE:
            on = str(value.value).lower() in _TRUE
            dropped = not keeps_off and ("_" in name or name.replace("-", "_") in ONE_WAY)
            words += [Word(text=flag)] if on else [] if dropped else [Word(text=f"--no-{name}")]
        elif value.value not in ("", "null", "~"):
            words += [replace(word_of(key, "key"), text=flag), word_of(value, "value")]
    return words


def _plain(node: Node) -> Any:  # noqa: ANN401 - JSON
    if node.id == MAPPING:
        return {name: _plain(value) for name, _, value in entries(node)}
    if node.id == SEQUENCE:
        return [_plain(item) for item in items(node)]
    kind = node.tag.rpartition(":")[2]
    text = str(node.value)
    readers: Mapping[str, Any] = {"int": int, "float": float, "bool": lambda word: word.lower() in _TRUE}
    try:
        return readers.get(kind, str)(text)
    except ValueError:
        return text


def find_llm_configs(node: Node | None, depth: int = 0) -> Sequence[Node]:
    """The mappings with a model and `engine_kwargs`, in a configuration of Ray Serve."""
    if node is None or depth > 8:  # noqa: PLR2004 - deeper than any configuration
        return ()
    if get(node, "model_loading_config") is not None:
        return (node,)
    children = [value for _, _, value in entries(node)] or items(node)
    return [found for child in children if child.id != SCALAR for found in find_llm_configs(child, depth + 1)]


def read_ray_serve(configs: Sequence[Node]) -> list[Launch]:
    """One server for each model of Ray Serve; it adds no flags that the rules judge."""
    launches = []
    for config in configs:
        loading = get(config, "model_loading_config")
        source = get(loading, "model_source") or get(loading, "model_id")
        model = [word_of(source, "value")] if source is not None and source.id == SCALAR else []
        kwargs = [
            replace(word, text=word.text.replace("_", "-")) if word.text.startswith("--") else word
            for word in words_of_mapping(get(config, "engine_kwargs"), keeps_off=True)
        ]
        launches.append(
            Launch(
                name=text_at(loading, "model_id"),
                start=config.start_mark.index,
                words=(*_SERVE, *model, *kwargs),
                ray=True,
                in_process=True,
            )
        )
    return launches
