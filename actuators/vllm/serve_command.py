"""How a container starts vLLM, and how to change some of its flags and leave the rest word for word.

Flags come from the container's entrypoint and command, and from the YAML of `--config FILE` below them: the
command line wins. A flag changes a knob that the file sets; the file is never written. Some images have an
entrypoint that makes flags of environment variables: there they are read and changed in the environment.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Self, TypeVar

from flettner.actuators.host.origin import secrets_of
from flettner.primitives.address import Address
from flettner.redaction import MASK
from flettner.vllm_facts import config_file
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import edit_flags, find_api_key, parse_address, parse_setting
from flettner.vllm_facts.flag_table import ONE_WAY, SEVERAL
from flettner.vllm_facts.values import Value, is_same

ReadFile = Callable[[str], str | None]
"""Returns the text of a file inside the container, by its absolute path; None if it cannot be read."""

KEPT = frozenset({"config", "model", "served_model_name"})  # no change of a setting changes what is served

_NOT_PLAIN_HTTP = {
    "uds": "it listens on a Unix socket",
    "ssl_certfile": "it speaks TLS itself",
    "ssl_keyfile": "it speaks TLS itself",
    "grpc": "it speaks gRPC",
    "headless": "it serves no API",
}

_T = TypeVar("_T")
_PROGRAM = re.compile(r"vllm|(python|pypy)[0-9.]*|dumb-init|env|numactl|nohup|stdbuf|taskset|tini")
_COMMAND_STRING = re.compile(r"-[a-z]*c")  # bash -c, sh -ec
_SERVER = ("vllm", "serve")
_SAGEMAKER_PREFIX = "SM_VLLM_"
_SAGEMAKER_SCRIPTS = frozenset({"sagemaker-entrypoint.sh", "sagemaker_entrypoint.sh"})
_SAGEMAKER = ("vllm", "serve", "--port", "8080")  # required by SageMaker; SM_VLLM_PORT overrides it


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedCommand:
    """The part of a create body that starts vLLM. `entrypoint` [""] removes the entrypoint of the image."""

    entrypoint: list[str]
    command: list[str]
    env: list[str] = field(repr=False)

    @property
    def argv(self) -> tuple[str, ...]:
        return argv_of([word for word in self.entrypoint if word], self.command, self.env)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerCommand:
    """The command of a container and the flags in it.

    `error` is the reason why the flags cannot be read; it is empty if they can. With an error the other
    fields hold as much as was read: `setting` lacks the flags of a `--config` file that cannot be read.
    """

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = field(default=(), repr=False)
    argv: tuple[str, ...] = ()  # program and flags, without an entrypoint script that runs the command
    setting: Mapping[str, Value] = field(default_factory=dict)
    file_setting: Mapping[str, Value] = field(default_factory=dict)  # the part from the --config file
    host: str = ""  # the server listens on it inside the container; empty: every interface
    port: int = 0
    api_key: str = field(default="", repr=False)  # clients must send it; empty: no key
    error: str = ""

    @classmethod
    def parse(
        cls,
        entrypoint: Sequence[str],
        command: Sequence[str],
        env: Sequence[str],
        working_dir: str,
        read_file: ReadFile,
    ) -> Self:
        errors: list[str] = []

        def attempt(read: Callable[[], _T], default: _T) -> _T:
            try:
                return read()
            except FlagError as error:
                errors.append(str(error))
                return default

        argv: tuple[str, ...] = attempt(lambda: argv_of(entrypoint, command, env), ())
        file_words: list[str] = attempt(lambda: _words_of_file(argv, working_dir, read_file), [])
        file_argv = [*_SERVER, *file_words]
        file_setting: dict[str, Value] = attempt(lambda: parse_setting(file_argv), {})
        setting: dict[str, Value] = attempt(lambda: {**file_setting, **parse_setting(argv)}, {})
        address = attempt(lambda: _listen_address(argv, file_argv), Address("", 0))
        env_key = dict(line.partition("=")[::2] for line in env).get("VLLM_API_KEY", "")
        return cls(
            entrypoint=tuple(entrypoint),
            command=tuple(command),
            env=tuple(env),
            argv=argv,
            setting=setting,
            file_setting=file_setting,
            host=address.host,
            port=address.port,
            api_key=attempt(lambda: find_api_key(argv) or find_api_key(file_argv), "") or env_key,
            error=errors[0] if errors else "",
        )

    @property
    def secrets(self) -> frozenset[str]:
        """The values that must not be shown anywhere."""
        env = dict(line.partition("=")[::2] for line in self.env)
        return secrets_of(self.argv, env) | {self.api_key} - {""}

    def with_setting(self, setting: Mapping[str, Value], *, port: int | None = None) -> ChangedCommand:
        """Return the command of a like container with this full setting; an empty one keeps all flags.

        Knobs that the setting does not name are removed, except KEPT. A value that the journal has masked
        stays as it is. Raises FlagError if a change of flags cannot do it.
        """
        if self.error and (setting or port is not None):
            raise FlagError(self.error)
        changes = self._changes(setting, port)
        entrypoint, command, env = list(self.entrypoint), list(self.command), list(self.env)
        if from_env := _argv_in_env(self.entrypoint, self.env):
            address = parse_address(from_env)
            given = {**parse_setting(from_env), "host": address.host, "port": address.port}
            changed = {knob: value for knob, value in changes.items() if not is_same(given.get(knob), value)}
            return ChangedCommand(entrypoint=entrypoint, command=command, env=_with_env_flags(env, changed))
        for knob, value in changes.items():  # one by one: an edit of both parts at once cannot be split again
            entrypoint, command = _edited(entrypoint, command, {knob: value})
        return ChangedCommand(entrypoint=entrypoint or [""], command=command, env=env)

    def _changes(self, setting: Mapping[str, Value], port: int | None) -> dict[str, Value]:
        """Return the knobs to write on the command line; some may have the value already."""
        place: dict[str, Value] = {} if port is None else {"port": port}
        if not setting:
            return place
        given = parse_setting(self.argv)
        wanted = {knob: value for knob, value in setting.items() if not _masked(value)}
        named = setting.keys() | KEPT
        changes: dict[str, Value] = dict.fromkeys(given.keys() - named)
        for knob in [*wanted, *(self.file_setting.keys() - named)]:
            value = wanted.get(knob)
            if knob in self.file_setting:
                if knob not in given and is_same(self.file_setting[knob], value):
                    continue
                if value is None or (value is False and knob in ONE_WAY):
                    raise FlagError(
                        f"{knob} stands in the --config file of the container, and no flag removes it: "
                        "remove it from that file, and recreate the container"
                    )
            changes[knob] = value
        return changes | place


def http_obstacles(setting: Mapping[str, Value]) -> tuple[str, ...]:
    """Return why such a server does not answer plain HTTP on a port, with the fix; empty: it does."""
    return tuple(
        f"{why} (--{knob.replace('_', '-')}), and flettner asks servers by plain HTTP on a port: "
        "take the flag out; TLS can end at the proxy"
        for knob, why in _NOT_PLAIN_HTTP.items()
        if setting.get(knob)
    )


def argv_of(entrypoint: Sequence[str], command: Sequence[str], env: Sequence[str]) -> tuple[str, ...]:
    """Return the program of the server and its flags, without a script that runs them.

    For an entrypoint that makes flags of the environment: the command line that it makes. Raises FlagError
    if there is no command.
    """
    if not entrypoint and not command:
        raise FlagError("the container has neither entrypoint nor command: start it with `vllm serve MODEL`")
    if made := _argv_in_env(entrypoint, env):
        return made
    return (*([] if _hands_over(entrypoint, command) else entrypoint), *command)


def _listen_address(argv: Sequence[str], file_argv: Sequence[str]) -> Address:
    own, in_file = parse_address(argv), parse_address(file_argv)
    return Address(
        own.host if _gives(argv, "host") else in_file.host, own.port if _gives(argv, "port") else in_file.port
    )


def _hands_over(entrypoint: Sequence[str], command: Sequence[str]) -> bool:
    """Whether the entrypoint is a script of the image that runs the command, like nvidia_entrypoint.sh."""
    if not entrypoint or not command or not _is_program(command[0]):
        return False
    return not any(_is_program(word) or _COMMAND_STRING.fullmatch(word) for word in entrypoint)


def _is_program(word: str) -> bool:
    return _PROGRAM.fullmatch(word.rpartition("/")[2]) is not None


def _edited(
    entrypoint: list[str], command: list[str], change: Mapping[str, Value]
) -> tuple[list[str], list[str]]:
    if _hands_over(entrypoint, command):
        return entrypoint, edit_flags(command, change)
    words = edit_flags([*entrypoint, *command], change)
    if words[: len(entrypoint)] == entrypoint:
        return entrypoint, words[len(entrypoint) :]
    if command and words[-len(command) :] == command:
        return words[: -len(command)], command
    return (words, []) if not command else (words[:1], words[1:])


def _masked(value: Value) -> bool:
    return isinstance(value, str) and MASK in value


def _gives(argv: Sequence[str], knob: str) -> bool:
    return edit_flags(argv, {knob: None}) != list(argv)


def _words_of_file(argv: Sequence[str], working_dir: str, read_file: ReadFile) -> list[str]:
    path = config_file.config_path(argv)
    if not path:
        return []
    full = str(PurePosixPath(working_dir or "/", path))
    text = read_file(full)
    if text is None:
        raise FlagError(
            f"--config {full} cannot be read in the container, so its flags are not known: "
            "mount the file where it can be read, or write its flags on the command line"
        )
    return config_file.parse_config(text, full)


# Flags in the environment. vLLM itself reads none there. Its SageMaker images do: their entrypoint turns
# `SM_VLLM_MAX_NUM_SEQS=8` into `--max-num-seqs 8`, and an empty value, or "true", into the flag alone.


def _argv_in_env(entrypoint: Sequence[str], env: Iterable[str]) -> tuple[str, ...]:
    """Return the command line that the entrypoint makes of the environment; empty: it makes none."""
    if not entrypoint or entrypoint[-1].rpartition("/")[2] not in _SAGEMAKER_SCRIPTS:
        return ()
    return (*_SAGEMAKER, *(word for line in env for word in _words_of_line(line)))


def _with_env_flags(env: Iterable[str], changes: Mapping[str, Value]) -> list[str]:
    """Return the environment with these knobs changed. Raises FlagError."""
    lines = [line for line in env if _knob_of_line(line) not in changes]
    return lines + [_env_line(knob, value) for knob, value in changes.items() if not _left_out(knob, value)]


def _words_of_line(line: str) -> list[str]:
    name, _, value = line.partition("=")
    if not name.startswith(_SAGEMAKER_PREFIX) or value.lower() == "false":
        return []
    flag = "--" + name.removeprefix(_SAGEMAKER_PREFIX).lower().replace("_", "-")
    return [flag] if value.lower() in {"", "true"} else [flag, value]


def _knob_of_line(line: str) -> str:
    """Return the canonical name of the knob; empty: the line is no flag."""
    name = line.partition("=")[0]
    if not name.startswith(_SAGEMAKER_PREFIX):
        return ""
    plain = name.removeprefix(_SAGEMAKER_PREFIX).lower()
    flag = "--" + plain.replace("_", "-")
    return next(iter(parse_setting([*_SAGEMAKER[:2], flag])), plain)  # a port is no part of a setting


def _left_out(knob: str, value: Value) -> bool:
    return value is None or (value is False and knob in ONE_WAY)


def _env_line(knob: str, value: Value) -> str:
    text = "" if isinstance(value, bool) else str(value)
    if knob in SEVERAL and len(text.split()) > 1:
        raise FlagError(f"{knob} = {value!r}: {_SAGEMAKER_PREFIX}{knob.upper()} takes one value only")
    return f"{_SAGEMAKER_PREFIX}{'NO_' * (value is False)}{knob.upper()}={text}"
