"""Where a container's vLLM flags stand, and how to change some and leave the rest word for word.

Flags are read from the container's entrypoint and command, and from the YAML of `--config FILE` below them:
the command line wins. A knob that the file sets is changed by a flag on the command line; the file is never
written. Images whose entrypoint makes flags of the environment are read and changed there.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from actuators.docker import env_flags
from vllm_facts import config_file
from vllm_facts.errors import FlagError
from vllm_facts.flag_table import ONE_WAY
from vllm_facts.flags import api_key_of, place_of, setting_of, with_setting
from vllm_facts.masking import MASK
from vllm_facts.values import Value

Json = dict[str, Any]

ReadFiles = Callable[[str], str | None]
"""The text of a file inside the container, by its absolute path; None when it cannot be read."""

KEPT = frozenset({"config", "model", "served_model_name"})  # no change of a setting changes what is served

_PROGRAM = re.compile(r"vllm|(python|pypy)[0-9.]*|dumb-init|env|numactl|nohup|stdbuf|taskset|tini")
_COMMAND_STRING = re.compile(r"-[a-z]*c")  # bash -c, sh -ec
_SERVER = ("vllm", "serve")


def argv_of(inspect: Json) -> tuple[str, ...]:
    """The server's program and its flags: entrypoint and command, without a script that hands over to them.

    Where an entrypoint makes flags of the environment: the command line that it makes. Raises FlagError
    when there is nothing to run.
    """
    entrypoint, command = _parts(inspect)
    if made := _from_environment(inspect):
        return made
    return (*([] if _hands_over(entrypoint, command) else entrypoint), *command)


def setting_in(inspect: Json, files: ReadFiles | None = None) -> dict[str, Value]:
    """The knobs it was started with, the last one wins; without `files`, those of the command line.

    Raises FlagError: a shell string, a `--config` file that cannot be read.
    """
    argv = argv_of(inspect)
    return {**_setting_of_file(inspect, files), **setting_of(argv)}


def place_in(inspect: Json, files: ReadFiles | None = None) -> tuple[str, int]:
    """Host ("": every interface) and port that it listens on inside the container. Raises FlagError."""
    argv = argv_of(inspect)
    host, port = place_of(argv)
    file_host, file_port = place_of([*_SERVER, *_words_of_file(inspect, files)])
    return (host if _gives(argv, "host") else file_host), (port if _gives(argv, "port") else file_port)


def api_key_in(inspect: Json, files: ReadFiles | None = None) -> str:
    """What the server wants to see of its clients; empty when it does not ask. Raises FlagError."""
    in_file = api_key_of([*_SERVER, *_words_of_file(inspect, files)])
    return api_key_of(argv_of(inspect)) or in_file or env_of(inspect).get("VLLM_API_KEY", "")


def env_of(inspect: Json) -> dict[str, str]:
    pairs = (line.partition("=") for line in inspect["Config"].get("Env") or ())
    return {name: value for name, _, value in pairs}


def with_command(
    inspect: Json, setting: Mapping[str, Value], *, port: int | None = None, files: ReadFiles | None = None
) -> tuple[list[str], list[str]]:
    """Entrypoint and command of a container like this one, with this whole setting; empty: as it is.

    Knobs that the setting does not name are taken out, but for KEPT. A value that the journal has masked
    stays as it is. An entrypoint that was taken out is [""]: an empty one would mean the image's own.
    Raises FlagError when that cannot be done by changing flags.
    """
    changes = _changes(inspect, setting, files, port)
    entrypoint, command = _parts(inspect)
    if _from_environment(inspect):
        return entrypoint, command
    for knob, value in changes.items():  # one by one: an edit in both parts at once could not be told apart
        entrypoint, command = _edited(entrypoint, command, {knob: value})
    return entrypoint or [""], command


def with_environment(
    inspect: Json, setting: Mapping[str, Value], *, port: int | None = None, files: ReadFiles | None = None
) -> list[str]:
    """The environment that goes with `with_command`: as it is, unless that is where the flags stand."""
    env = list(inspect["Config"].get("Env") or ())
    argv = _from_environment(inspect)
    if not argv:
        return env
    host, listens = place_of(argv)
    given = {**setting_of(argv), "host": host, "port": listens}
    changes = _changes(inspect, setting, files, port)
    changed = {knob: value for knob, value in changes.items() if not same(given.get(knob), value)}
    return env_flags.with_flags(env, changed)


def same(have: Value, want: Value) -> bool:
    return have == want and isinstance(have, bool) == isinstance(want, bool)  # True == 1


def _from_environment(inspect: Json) -> tuple[str, ...]:
    config = inspect["Config"]
    return env_flags.argv_in(config.get("Entrypoint") or (), config.get("Env") or ())


def _parts(inspect: Json) -> tuple[list[str], list[str]]:
    config = inspect["Config"]
    entrypoint, command = list(config.get("Entrypoint") or ()), list(config.get("Cmd") or ())
    if not entrypoint and not command:
        raise FlagError("the container has neither entrypoint nor command: start it with `vllm serve MODEL`")
    return entrypoint, command


def _hands_over(entrypoint: Sequence[str], command: Sequence[str]) -> bool:
    """The entrypoint is a script of the image that runs the command, as nvidia_entrypoint.sh does."""
    if not entrypoint or not command or not _is_program(command[0]):
        return False
    return not any(_is_program(word) or _COMMAND_STRING.fullmatch(word) for word in entrypoint)


def _is_program(word: str) -> bool:
    return _PROGRAM.fullmatch(word.rpartition("/")[2]) is not None


def _edited(
    entrypoint: list[str], command: list[str], change: Mapping[str, Value]
) -> tuple[list[str], list[str]]:
    if _hands_over(entrypoint, command):
        return entrypoint, with_setting(command, change)
    words = with_setting([*entrypoint, *command], change)
    if words[: len(entrypoint)] == entrypoint:
        return entrypoint, words[len(entrypoint) :]
    if command and words[-len(command) :] == command:
        return words[: -len(command)], command
    return (words, []) if not command else (words[:1], words[1:])


def _changes(
    inspect: Json, setting: Mapping[str, Value], files: ReadFiles | None, port: int | None
) -> dict[str, Value]:
    """The knobs to be written on the command line; some may be there as wanted."""
    place: dict[str, Value] = {} if port is None else {"port": port}
    if not setting:
        return place
    given, in_file = setting_of(argv_of(inspect)), _setting_of_file(inspect, files)
    wanted = {knob: value for knob, value in setting.items() if not _masked(value)}
    known = setting.keys() | KEPT
    changes: dict[str, Value] = dict.fromkeys(given.keys() - known)
    for knob in [*wanted, *(in_file.keys() - known)]:
        value = wanted.get(knob)
        if knob in in_file:
            if knob not in given and same(in_file[knob], value):
                continue
            if value is None or (value is False and knob in ONE_WAY):
                raise FlagError(
                    f"{knob} stands in the --config file of the container, and no flag takes it out again: "
                    "take it out of that file, and start the container anew"
                )
        changes[knob] = value
    return changes | place


def _masked(value: Value) -> bool:
    return isinstance(value, str) and MASK in value


def _gives(argv: Sequence[str], knob: str) -> bool:
    return with_setting(argv, {knob: None}) != list(argv)


def _setting_of_file(inspect: Json, files: ReadFiles | None) -> dict[str, Value]:
    return setting_of([*_SERVER, *_words_of_file(inspect, files)])


def _words_of_file(inspect: Json, files: ReadFiles | None) -> list[str]:
    path = config_file.config_path(argv_of(inspect))
    if not path or files is None:
        return []
    full = str(PurePosixPath(inspect["Config"].get("WorkingDir") or "/", path))
    text = files(full)
    if text is None:
        raise FlagError(
            f"--config {full} cannot be read in the container, so its flags are not known: "
            "mount the file where it can be read, or write its flags on the command line"
        )
    return config_file.parse_config(text, full)
