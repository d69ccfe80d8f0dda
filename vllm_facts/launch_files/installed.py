"""The release of vLLM that a file installs before it starts the server."""

import re
from collections.abc import Sequence
from dataclasses import replace

from flettner.vllm_facts.launch_files.launch import Launch
from flettner.vllm_facts.shell_command.docker_run import CONTAINERS

_INSTALLED = re.compile(
    r"(?<![\w-])vllm(?:\[[\w,-]{0,40}\])?(?:==|@v?)(0\.\d{1,3}\.\d{1,3}(?:\.post\d)?)(?:\+\w{1,20})?(?![\w.+-])"
)
_COMMENT = re.compile(r"(?:(?<=\n)|^)[ \t]{0,80}#[^\n]*")


def find_installed_release(text: str) -> str:
    """The one release that the text installs, `pip install vllm==0.21.0`; "" for none and for several."""
    if "vllm" not in text or "0." not in text:
        return ""
    found = set(_INSTALLED.findall(_COMMENT.sub("", text)))
    return found.pop() if len(found) == 1 else ""


def with_installed_release(launches: Sequence[Launch], text: str) -> list[Launch]:
    """The launches with that release, unless they have one of their own, as containers in their image."""
    release = find_installed_release(text)
    if not release:
        return list(launches)
    return [
        launch
        if launch.version or CONTAINERS & {word.text for word in launch.words}
        else replace(launch, version=release)
        for launch in launches
    ]
