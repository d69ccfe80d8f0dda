"""A command line as a person has it, to read and to edit: `K=V vllm serve …`, `docker run … IMAGE …`."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.errors import ConfigError, FlagError
from agent.flags import Value, api_key_of, place_of, setting_of, with_setting
from agent.masking import MASK

HOW = "write the server's own words after --, as in `trimtab lint -- vllm serve MODEL --max-num-seqs 64`"
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
_CONTAINERS = frozenset({"docker", "nerdctl", "podman"})
_ALONE = frozenset(
    {
        "--detach",
        "--disable-content-trust",
        "--init",
        "--interactive",
        "--no-healthcheck",
        "--oom-kill-disable",
        "--privileged",
        "--publish-all",
        "--quiet",
        "--read-only",
        "--replace",
        "--rm",
        "--sig-proxy",
        "--tty",
    }
)
_SHORT_ALONE = re.compile(r"-[ditPq]+")
_SERVE = ("vllm", "serve")
_LARGEST_FILE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """`before`: the words up to the server's own (`docker run … IMAGE`)."""

    argv: tuple[str, ...]  # the server's own words, beginning with what starts it
    implied: int = 0  # of them at the front that the image says itself
    before: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    file: Mapping[str, Value] = field(default_factory=dict)  # what its --config file says

    @property
    def setting(self) -> dict[str, Value]:
        """Raises FlagError."""
        return {**self.file, **setting_of(self.argv)}

    @property
    def reach(self) -> dict[str, Value]:
        """Who reaches it, which is no part of a setting: its host, where one is given; that it has a key."""
        host, _ = place_of(self.argv)
        key = {"api_key": MASK} if api_key_of(self.argv) else {}
        return {**({"host": host} if host else {}), **key}

    @property
    def words(self) -> list[str]:
        """Without the environment of a shell."""
        return [*self.before, *self.argv[self.implied :]]

    @property
    def version(self) -> str:
        """Of vLLM, as the image's tag says; "" where it says none."""
        tag = re.search(r":v?(\d+\.\d+\.\d+)[^/]*$", self.before[-1]) if self.before else None
        return tag[1] if tag else ""

    @property
    def assignments(self) -> list[str]:
        """What stands in front of the words in a shell."""
        if self.before:
            return []
        unset = [word for name in self.unset for word in ("-u", name)]
        given = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return [*(["env"] if unset else []), *unset, *given]


def read(words: Sequence[str]) -> Command:
    """The command of these words. ConfigError says what is missing and how it is written."""
    given = list(words)
    if given[:1] == ["--"]:
        del given[0]
    if len(given) == 1 and " " in given[0]:
        try:
            given = shlex.split(given[0])
        except ValueError as error:
            raise ConfigError(f"the command cannot be read: {error}; {HOW}") from error
    if not given:
        raise ConfigError(f"no command is given; {HOW}")
    env: dict[str, str] = {}
    if given[0] == "env" and len(given) > 1 and _ASSIGNMENT.match(given[1]):
        del given[0]
    while given and _ASSIGNMENT.match(given[0]):
        name, _, value = given.pop(0).partition("=")
        env[name] = value
    if not given:
        raise ConfigError(f"after the variables no command is given; {HOW}")
    command = _contained(given) if given[0] in _CONTAINERS else Command(argv=tuple(given))
    command = replace(command, env={**env, **command.env})
    try:
        setting = setting_of(command.argv)
    except FlagError as error:
        raise ConfigError(f"{' '.join(given[:3])} …: {error}; {HOW}") from error
    if "model" not in setting and not any("vllm" in word or word == "serve" for word in command.argv):
        raise ConfigError(f"{' '.join(given[:3])} …: starts no vLLM server; {HOW}")
    path = setting.get("config")
    return replace(command, file=_file(str(path))) if path and not command.before else command


def edited(command: Command, to: Mapping[str, Value], env: Mapping[str, str | None]) -> Command:
    """The same with these changes and no others. Raises FlagError."""
    argv = tuple(with_setting(command.argv, to))
    environment = {**command.env, **{name: value for name, value in env.items() if value is not None}}
    gone = [name for name, value in env.items() if value is None]
    kept = {name: value for name, value in environment.items() if name not in gone}
    before = _docker_env(command.before, env) if command.before else ()
    unset = tuple(name for name in gone if name not in command.env)
    return replace(command, argv=argv, env=kept, before=before, unset=unset)


def _contained(words: list[str]) -> Command:
    """`docker run [options] IMAGE [words]`; the images of vLLM say `vllm serve` themselves."""
    if words[1:2] != ["run"]:
        raise ConfigError(f"{' '.join(words[:2])}: only `{words[0]} run … IMAGE …` can be read; {HOW}")
    at, env = 2, {}
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        alone = name in _ALONE or _SHORT_ALONE.fullmatch(name) is not None
        if not equals and not alone:
            at += 1
            value = words[at] if at < len(words) else ""
        if name in {"-e", "--env"} and "=" in value:
            env[value.partition("=")[0]] = value.partition("=")[2]
        elif name == "--entrypoint":
            raise ConfigError(f"--entrypoint {value}: what the image then starts is not known; {HOW}")
        at += 1
    if at >= len(words):
        raise ConfigError(f"{words[0]} run: no image is named; {HOW}")
    before, own = tuple(words[: at + 1]), words[at + 1 :]
    if own[:1] == ["serve"]:
        return Command(argv=("vllm", *own), implied=1, before=before, env=env)
    if own[:1] and not own[0].startswith("-") and (own[0].rpartition("/")[2].startswith(("vllm", "python"))):
        return Command(argv=tuple(own), before=before, env=env)
    return Command(argv=(*_SERVE, *own), implied=len(_SERVE), before=before, env=env)


def _docker_env(before: Sequence[str], env: Mapping[str, str | None]) -> tuple[str, ...]:
    """`-e K=V` of the changed variables taken out, and put in again before the image."""
    kept: list[str] = []
    at = 0
    while at < len(before):
        name, equals, value = before[at].partition("=")
        separate = name in {"-e", "--env"} and not equals
        value = before[at + 1] if separate and at + 1 < len(before) else value
        if name not in {"-e", "--env"} or value.partition("=")[0] not in env:
            kept += before[at : at + 1 + separate]
        at += 1 + separate
    new = [word for name, value in env.items() if value is not None for word in ("-e", f"{name}={value}")]
    return (*kept[:-1], *new, kept[-1])


def _file(path: str) -> dict[str, Value]:
    """The flags of a --config file; lists are left out."""
    import yaml  # noqa: PLC0415 - few commands have such a file

    try:
        with Path(path).open("rb") as file:
            content: Any = yaml.safe_load(file.read(_LARGEST_FILE))
    except OSError as error:
        raise ConfigError(
            f"--config {path}: cannot be read: {error.strerror}; leave it out, or copy it"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: is not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: holds no flags: one `name: value` a line is expected")
    known = (bool, int, float, str)
    return {str(k).replace("-", "_"): v for k, v in content.items() if isinstance(v, known)}
