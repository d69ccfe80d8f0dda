"""The origin of new servers of a target: command line, environment and folder of its first server."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from flettner.actuators.host.notes import Notes
from flettner.actuators.host.procfs import Process, directory, environment, words
from flettner.agent.domain.upgrade import COMMAND, env_in
from flettner.redaction import MASK
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import (
    edit_flags,
    find_api_key,
    find_program,
    find_secrets,
    parse_setting,
    replace_program,
)
from flettner.vllm_facts.values import ENV, GPUS, Setting, Value

# Messages from systemd to the daemon: a server that inherits them would notify systemd as the daemon.
_NOT_INHERITED = frozenset(
    {"LISTEN_FDNAMES", "LISTEN_FDS", "LISTEN_PID", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"}
)
_KEPT = frozenset({"config", "model", "served_model_name"})  # no change of a setting changes what is served
_SECRET_NAME = re.compile(r"(?i)key|token(?!s|izer)|secret|passw|credential")
_SHORTEST_SECRET = 4
_NOTE = "origin"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# vLLM for the CPU pins its threads to the same cores in every server: the second one hardly runs while the
# first is busy (measured: 1 s of CPU in 4 min on 2 cores). vLLM for GPUs ignores the variable.
_SHARES_THE_HOST = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: str

    def command(self, setting: Mapping[str, Value], port: int) -> list[str]:
        """Return the command line of a server with this full setting; an empty one means: as configured.

        Knobs that the setting does not name are removed, except those that select the model. A knob whose
        value is masked stays as it is here. Raises FlagError.
        """
        left_out = parse_setting(self.argv).keys() - setting.keys() - _KEPT if setting else ()
        settings = {
            knob: value for knob, value in setting.items() if not (isinstance(value, str) and MASK in value)
        }
        return edit_flags(self.argv, {**dict.fromkeys(left_out), **settings, "port": port})

    @property
    def api_key(self) -> str:
        return find_api_key(self.argv) or self.env.get("VLLM_API_KEY", "")

    @property
    def secrets(self) -> frozenset[str]:
        return secrets_of(self.argv, self.env)

    @property
    def setting(self) -> Setting:
        return setting_of(self.argv)

    def upgraded(self, start: Setting) -> Self:
        """Return the origin with the program, variables and GPUs that changes have set. Raises FlagError.

        In PATH and VIRTUAL_ENV the folder of the new program takes the place of the present one's.
        """
        argv, env = self.argv, dict(self.env)
        if program := str(start.get(COMMAND) or ""):
            changed, _ = replace_program(self.argv, program)
            argv, old, new = tuple(changed), Path(self.program_path()).parent, Path(program).parent
            path = [str(new) if part == str(old) else part for part in env.get("PATH", "").split(os.pathsep)]
            env |= {"PATH": os.pathsep.join(path)} if "PATH" in env else {}
            if env.get("VIRTUAL_ENV") == str(old.parent):
                env["VIRTUAL_ENV"] = str(new.parent)
        for name, value in env_in(start).items():
            env.pop(name, None)
            env |= {} if value is None else {name: str(value)}
        if gpus := start.get(GPUS):
            env |= {VISIBLE_GPUS: str(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as nvidia-smi counts them
        return replace(self, argv=argv, env=env)

    def present(self, name: str) -> Value:
        """Return the program or a variable, by the name that a change has for it. Raises FlagError."""
        return self.program_path() if name == COMMAND else self.env.get(name.removeprefix(ENV))

    def program_path(self) -> str:
        """Return the full path of the program; its name if it is not found. Raises FlagError."""
        at = find_program(self.argv)
        with suppress(FlagError):
            _, present = replace_program(self.argv, "vllm")
            return self._found(present) or present
        return self._found(self.argv[at]) or self.argv[at]

    def program(self) -> str | None:
        """Return the path of the program; None if it is missing, or may not be executed."""
        return self._found(self.argv[0])

    def _found(self, word: str) -> str | None:
        name = str(Path(self.cwd, word)) if "/" in word else word
        return shutil.which(name, path=self.env.get("PATH", os.defpath))


def secrets_of(argv: Sequence[str], env: Mapping[str, str]) -> frozenset[str]:
    """Return the values that must not be shown anywhere."""
    named = (value for name, value in env.items() if _SECRET_NAME.search(name))
    return frozenset(s for s in (*find_secrets(argv), *named) if len(s) >= _SHORTEST_SECRET)


def setting_of(argv: Sequence[str]) -> Setting:
    """Return the flags of a command line; {} if they cannot be read."""
    with suppress(FlagError):
        return parse_setting(argv)
    return {}


def build_origin(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Origin:
    """Return the origin from the options; the environment of the daemon is inherited."""
    return Origin(argv=tuple(argv), env={**inherited(os.environ), **env}, cwd=cwd or str(Path.cwd()))


def adopted(process: Process) -> Origin | None:
    """Return the origin of a running server; None if its command line is not readable."""
    if not (argv := tuple(words(process.pid))):
        return None
    return Origin(argv=argv, env=inherited(environment(process.pid)), cwd=directory(process.pid))


def inherited(env: Mapping[str, str]) -> dict[str, str]:
    copied = {name: value for name, value in env.items() if name not in _NOT_INHERITED}
    return {**_SHARES_THE_HOST, **copied}


def remember(state_dir: Path, origin: Origin) -> None:
    """Keep the origin of an adopted server, to start others when it is gone."""
    Notes(state_dir).write(_NOTE, asdict(origin))


def remembered(state_dir: Path) -> Origin | None:
    note = Notes(state_dir).read(_NOTE) or {}
    try:
        return Origin(argv=tuple(note["argv"]), env=dict(note["env"]), cwd=str(note["cwd"]))
    except (ValueError, TypeError, KeyError):
        return None
