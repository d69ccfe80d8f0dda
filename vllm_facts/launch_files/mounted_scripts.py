"""Scripts of ConfigMaps that a pod mounts, in the place of the paths that its containers start."""

import re
from collections.abc import Mapping, Sequence
from posixpath import join, normpath

from flettner.vllm_facts.flag_parser import SHELLS, WRAPPERS
from flettner.vllm_facts.launch_files.launch import Word
from flettner.vllm_facts.launch_files.shell_words import split_commands
from flettner.vllm_facts.launch_files.yaml_nodes import (
    SCALAR,
    Node,
    entries,
    get,
    items,
    text_at,
    walk,
    word_of,
)

ScriptVolumes = Mapping[str, Mapping[str, Word]]
"""The files of the volumes of ConfigMaps, by the volume's name and their paths in it."""

_OPTION = re.compile(r"-[a-z]*")


def find_script_volumes(document: Node, config_maps: Sequence[Node]) -> ScriptVolumes:
    """Of a resource's pods. A name that two pods of the resource give to different volumes is left out."""
    texts = {text_at(each, "metadata", "name"): get(each, "data") for each in config_maps}
    volumes: dict[str, Mapping[str, Word]] = {}
    unclear = set[str]()
    for volume in (each for name, value in walk(document) if name == "volumes" for each in items(value)):
        name, source = text_at(volume, "name"), get(volume, "configMap")
        data = texts.get(text_at(source, "name"))
        files = _files(source, data) if source is not None and data is not None else {}
        if volumes.setdefault(name, files) != files:
            unclear.add(name)
    return {name: files for name, files in volumes.items() if name not in unclear}


def _files(source: Node, data: Node) -> dict[str, Word]:
    texts = {name: word_of(value, "value") for name, _, value in entries(data) if value.id == SCALAR}
    chosen = items(get(source, "items"))
    if not chosen:
        return texts
    pairs = [(text_at(each, "path"), text_at(each, "key")) for each in chosen]
    return {path: texts[key] for path, key in pairs if key in texts}


def mount_scripts(container: Node, volumes: ScriptVolumes) -> Mapping[str, Word]:
    """The files of ConfigMaps by their paths in the container."""
    mounted: dict[str, Word] = {}
    for mount in items(get(container, "volumeMounts")) if volumes else []:
        files, path = volumes.get(text_at(mount, "name"), {}), text_at(mount, "mountPath")
        part = text_at(mount, "subPath")
        if part:
            mounted |= {normpath(path): files[part]} if part in files else {}
        else:
            mounted |= {normpath(join(path, name)): file for name, file in files.items()}
    return mounted


def insert_scripts(words: Sequence[Word], mounted: Mapping[str, Word]) -> list[Word]:
    """The words of a command that starts such a file, with `sh -c` and its text in the place of its path."""
    at = _find_path([word.text for word in words], mounted) if mounted else None
    if at is not None:
        script = mounted[normpath(words[at].text)]
        return [Word(text="sh"), Word(text="-c"), script, Word(text="sh"), *words[at + 1 :]]
    if mounted and len(words) == _SHELL_WITH_SCRIPT and words[1].text.startswith("-"):
        for command in split_commands(words[2].text):
            texts = [word.text for word in command if word.text not in WRAPPERS]
            if (inner := _find_path(texts, mounted)) is not None:
                return [words[0], words[1], mounted[normpath(texts[inner])]]
    return list(words)


_SHELL_WITH_SCRIPT = 3  # words: `sh -c SCRIPT`


def _find_path(texts: Sequence[str], mounted: Mapping[str, Word]) -> int | None:
    """Where a command names such a file as its program, or as the script of a shell."""
    at = 0
    if texts and texts[0].rpartition("/")[2] in SHELLS:
        at = next((at for at, text in enumerate(texts) if at and not _OPTION.fullmatch(text)), 1)
        if any("c" in text for text in texts[1:at]):
            return None
    return at if at < len(texts) and normpath(texts[at]) in mounted else None
