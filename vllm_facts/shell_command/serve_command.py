"""Parse and edit a complete command: `K=V vllm serve …`, `docker run … IMAGE …`."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from flettner.redaction import MASK
from flettner.vllm_facts.config_file import UnsupportedEdit, merge_json_parts, read_config, unsupported_edits
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import (
    WRAPPERS,
    edit_flags,
    find_api_key,
    find_program,
    find_second_model,
    insert_file_flags,
    is_worker,
    parse_address,
    parse_setting,
    starts_engine,
)
from flettner.vllm_facts.flag_table import SHORT
from flettner.vllm_facts.placeholders import is_placeholder
from flettner.vllm_facts.serve_config import Container, EntryFault, Launcher
from flettner.vllm_facts.shell_command import shell
from flettner.vllm_facts.shell_command.docker_run import (
    CONTAINERS,
    HOW,
    STARTS,
    explain_shell,
    find_overlays,
    image_version,
    mounted_paths,
    parse_docker_run,
    published_ports,
    read_gib,
    replace_env,
)
from flettner.vllm_facts.shell_command.shell import ASSIGNMENT, quote_word
from flettner.vllm_facts.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCommand:
    """`before`: the words up to the server's own (`docker run … IMAGE`). `front`: wrappers (`nohup`)."""

    argv: tuple[str, ...]  # the server's own words, from the program on
    implied: int = 0  # number of leading words that the image adds
    before: tuple[str, ...] = ()
    front: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    file: tuple[str, ...] = ()  # the flags of its --config file
    aside: tuple[str, ...] = ()  # `> log 2>&1 &`
    live: bool = False  # the shell still has to expand variables
    unread: str = ""  # why the --config file was not read
    shell: tuple[str, ...] = ()  # in a container: `bash -c`, before a script
    lead: str = ""  # the script's text before the server's words
    inner_aside: tuple[str, ...] = ()  # its redirections
    entry_fault: EntryFault | None = None
    unlimited_memlock: bool = False  # by the file
    bypassed: str = ""  # the image in a file whose own entrypoint another command replaces

    @property
    def setting(self) -> dict[str, Value]:
        """Raises FlagError."""
        return parse_setting(self._all())

    @property
    def exposure(self) -> dict[str, Value]:
        """Host, if given, and API key (masked): flags that are no part of a setting. Raises FlagError."""
        try:
            host = parse_address(self._all()).host
        except FlagError:
            if not _hides_port(self.argv):
                raise
            host = ""
        key = {"api_key": MASK} if find_api_key(self._all()) else {}
        return {**({"host": host} if host else {}), **key}

    @property
    def port(self) -> int | None:
        """Of its API; None where a variable gives it, or without an API."""
        if is_worker(self.argv):
            return None
        try:
            return parse_address(self._all()).port
        except FlagError:
            return None

    @property
    def server_env(self) -> dict[str, str]:
        """The variables that the server gets: sudo drops those of its caller."""
        dropped = "sudo" in self.front and not {"-E", "--preserve-env"} & set(self.front)
        return {**({} if dropped else self.env), **_assigned(self.front)}

    @property
    def words(self) -> list[str]:
        """The command without the environment of a shell."""
        if self.lead or self.shell:
            script = self.lead + shlex.join(self.argv) + "".join(f" {word}" for word in self.inner_aside)
            return [*self.before, *self.shell, script]
        return [*self.before, *self.front, *self.argv[self.implied :]]

    @property
    def version(self) -> str:
        """The vLLM version in the image's tag; "" if the tag has no version."""
        return image_version(self.before[-1]) if self.before else ""

    @property
    def bypassed_image(self) -> str:
        """The image whose own entrypoint another command replaces; "" for none."""
        replaced = any(word.startswith("--entrypoint") for word in self.before)
        return self.before[-1] if replaced else self.bypassed

    @property
    def locks_memory(self) -> bool:
        """Whether the container may pin memory without a limit."""
        return self.unlimited_memlock or any("memlock=-1" in word for word in self.before)

    @property
    def container(self) -> Container | None:
        """What `docker run` says of the container; None without it."""
        if not STARTS.intersection(self.before):
            return None
        ports = published_ports(self.before)
        return Container(
            launcher="docker run",
            image=self.before[-1],
            overlays=find_overlays(mounted_paths(self.before)),
            asked_ports=ports,
            asked_by="-p" if ports else "",
        )

    @property
    def little_shared_memory(self) -> Launcher | None:
        """`docker run`, if it leaves the container with 64 MB of /dev/shm."""
        words = self.before
        larger = any(word.startswith(("--ipc", "--shm-size")) or "shm" in word for word in words)
        return "docker run" if STARTS.intersection(words) and not larger else None

    @property
    def shared_memory_gib(self) -> float | None:
        """What `docker run` gives the container in /dev/shm, if its words say it."""
        words = self.before
        if any(word.startswith("--ipc") for word in words):
            return None
        given = next((value for word, value in pairwise(words) if word == "--shm-size"), "")
        joined = next((word for word in words if word.startswith("--shm-size=")), "")
        return read_gib(given or joined.partition("=")[2], binary=True)

    @property
    def assignments(self) -> list[str]:
        """The variable assignments before the words, for a shell."""
        if self.before:
            return []
        unset = [word for name in self.unset for word in ("-u", name)]
        inside = _assigned(self.front)
        given = [f"{name}={value}" for name, value in self.env.items() if inside.get(name) != value]
        return [*(["env"] if unset else []), *unset, *map(partial(quote_word, live=self.live), given)]

    def unsupported_edits(self, to: Mapping[str, Value]) -> list[UnsupportedEdit]:
        """The lines of its --config file that must be removed, because no flag overrides them."""
        return unsupported_edits(to, self.file, self.argv) if self.file else []

    def _all(self) -> list[str]:
        return insert_file_flags(self.argv, self.file)


def _hides_port(argv: Sequence[str]) -> bool:
    """Whether a variable or a mark of a template stands for a number: `--port $PORT`, `--port <PORT>`."""
    values = [word.rpartition("=")[2] for word in argv]
    return any("$" in word for word in argv) or any(is_placeholder(value, number=True) for value in values)


def _one_dash(argv: Sequence[str]) -> str:
    """The first long flag with one dash, which vLLM refuses: `-max-num-seqs`; "" if there is none."""
    for word in argv:
        name = re.match(r"-([A-Za-z][A-Za-z_-]{3,})(?=[.=]|$)", word)
        if name and name[1] not in SHORT and not name[1].startswith("O"):
            return name[0]
    return ""


MOST_WORDS = 2000  # of a command; vLLM 0.32 has 290 flags


def _check_length(words: Sequence[str]) -> None:
    """Raises FlagError."""
    if not words:
        raise FlagError(f"no command is given; {HOW}")
    if len(words) > MOST_WORDS:
        raise FlagError(f"the command has {len(words)} words, lint reads {MOST_WORDS}")


def parse_command(words: Sequence[str], *, elsewhere: bool = False) -> ServeCommand:
    """Parse the words of a command. `elsewhere`: its --config file is not on this host. Raises FlagError."""
    given, aside = list(words), list[str]()
    if given[:1] == ["--"]:
        del given[0]
    live = len(given) == 1 and len(given[0].split()) > 1
    if live:
        given, aside = shell.split_command(given[0])
    _check_length(given)
    env: dict[str, str] = {}
    if given[0] == "env" and len(given) > 1 and ASSIGNMENT.match(given[1]):
        del given[0]
    while given and ASSIGNMENT.match(given[0]):
        name, _, value = given.pop(0).partition("=")
        env[name] = value
    if not given:
        raise FlagError(f"no command follows the variables; {HOW}")
    command = replace(_started(given, env), aside=tuple(aside), live=live)
    if (dashed := _one_dash(command.argv)) and "serve" in command.argv:
        raise FlagError(f"{_shown(given)}: {dashed} has one dash: write -{dashed}")
    serves = any("vllm" in word or word == "serve" for word in command.argv)
    try:
        setting = parse_setting(command.argv)
    except FlagError as error:
        message = str(error) if serves or "python" in command.argv[0] else f"starts no vLLM server; {HOW}"
        raise FlagError(f"{_shown(given)}: {message}") from error
    if "model" not in setting and "config" not in setting and not starts_engine(command.argv):
        raise FlagError(f"{_shown(given)}: starts no vLLM server; {HOW}")
    if (models := find_second_model(command.argv)) and not command.entry_fault:
        twice = f"the model is named twice, by {models[0]} and by --model {models[1]}"
        fault = EntryFault(f"{twice}: `vllm serve` takes one name and refuses the other", of="name")
        command = replace(command, entry_fault=fault)
    return _with_file(command, setting.get("config"), elsewhere=elsewhere)


def _started(given: list[str], env: dict[str, str]) -> ServeCommand:
    """Parse the words after the variables: wrappers, then a container or the server. Raises FlagError."""
    at = _start(given)
    front, own = given[:at], given[at:]
    if own[0].rpartition("/")[2] not in CONTAINERS:
        return ServeCommand(argv=tuple(own), front=tuple(front), env=env)
    inside = parse_docker_run(own, {**env, **_assigned(front)})
    leading = [f"{name}={value}" for name, value in env.items()]
    return ServeCommand(
        argv=inside.argv,
        implied=inside.implied,
        shell=inside.shell,
        lead=inside.lead,
        inner_aside=inside.aside,
        entry_fault=inside.entry_fault,
        before=(*leading, *front, *inside.before),
        env=inside.env,
    )


def _shown(given: Sequence[str]) -> str:
    return " ".join(given[:3]) + " …" * (len(given) > len(given[:3]))


def _start(given: list[str]) -> int:
    if given[:3] == ["ray", "job", "submit"] and "--" in given[:-1]:
        return given.index("--") + 1
    if given[0].rpartition("/")[2] in WRAPPERS:
        for at, word in enumerate(given):
            if word.rpartition("/")[2] in CONTAINERS and STARTS.intersection(given[at + 1 : at + 2]):
                return at
    try:
        at = find_program(given)
    except FlagError as error:
        message = explain_shell(given) if "a shell" in str(error) else f"{error}"
        raise FlagError(f"{_shown(given)}: {message}") from error
    pairs = zip(given[at:], given[at + 1 :], strict=False)
    if given[at] not in CONTAINERS and ("vllm", "serve") in list(pairs)[1:]:
        raise FlagError(f"{_shown(given)}: the effect of {given[at]} on the server is unknown; {HOW}")
    return at


def _assigned(words: Sequence[str]) -> dict[str, str]:
    given = (word.partition("=") for word in words if ASSIGNMENT.match(word))
    return {name: value for name, _, value in given}


def _with_file(command: ServeCommand, path: Value, *, elsewhere: bool) -> ServeCommand:
    """The command with the flags of its --config file, if that is readable. Raises FlagError."""
    if not isinstance(path, str):
        return command
    if command.before:
        return replace(command, unread=f"{path}: the file is in the container (lint it outside)")
    if elsewhere:
        return replace(command, unread=f"{path}: the file is not read (lint `vllm serve --config` beside it)")
    if "--config" not in command.argv:  # vllm/utils/argparse_utils.py
        return replace(
            command, unread=f"--config={path}: vLLM reads the file only as two words, --config {path}"
        )
    if command.argv.count("--config") > 1:
        raise FlagError(f"--config {path} is given twice: vLLM takes one file only")
    command = replace(command, file=tuple(read_config(path)))
    try:
        _ = command.setting
    except FlagError as error:
        raise FlagError(f"--config {path}: {error}") from error
    return command


def edit_command(
    command: ServeCommand, to: Mapping[str, Value], env: Mapping[str, str | None]
) -> ServeCommand:
    """Apply the changes of flags and variables. Raises FlagError."""
    argv = tuple(
        edit_flags(command.argv, merge_json_parts(to, command.file, command.argv) if command.file else to)
    )
    inside = _assigned(command.front)
    own = {name: value for name, value in env.items() if name not in inside}
    variables = {**command.env, **{name: value for name, value in own.items() if value is not None}}
    gone = [name for name, value in own.items() if value is None]
    front = _wrapped_env(command.front, env)
    if "sudo" in front:  # sudo drops the variables before it
        new = [f"{name}={value}" for name, value in own.items() if value is not None]
        front, variables = (*front, *(["env", *new] if new else [])), dict(command.env)
    return replace(
        command,
        argv=argv,
        front=front,
        env={name: value for name, value in variables.items() if name not in gone},
        before=replace_env(command.before, env) if command.before else (),
        unset=tuple(name for name in gone if name not in command.env),
    )


def _wrapped_env(front: Sequence[str], env: Mapping[str, str | None]) -> tuple[str, ...]:
    """The wrappers, with the changed variables of `env K=V` replaced in place."""
    words = []
    for word in front:
        name = word.partition("=")[0]
        value = env.get(name, "") if ASSIGNMENT.match(word) and name in env else word
        if value is not None:
            words.append(word if value is word else f"{name}={value}")
    return tuple(words)
