"""Parse a vLLM command line into a setting, and edit single flags.

Address and secrets are no part of a setting: servers with the same setting may differ in them. Flags inside a
`--config` file are read only after `insert_file_flags` has added them to the command line.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import isfinite

from flettner.primitives.address import Address
from flettner.vllm_facts.deprecated_flags import RENAMED
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_table import ALIASES, NAMES, ONE_WAY, SEVERAL, SHORT, SIZES, TEXTS, is_switch
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.values import Value, is_same

ADDRESS = frozenset({"host", "port"})
SECRETS = frozenset({"api_key", "hf_token"})

UNNAMED_MODEL = "model_tag"
"""The positional argument of the module `api_server`, which does not read it."""

STRAY = "stray_words"
"""Stands in a setting for the words of a program where the server takes its model."""

GLUED = "glued_words"
"""Stands in a setting for a flag and its value in one word, `"--dtype auto"`, which vLLM refuses."""

VALUED = "valued_switch"
"""`valued_switch.NAME` stands in a setting for a switch with a value, `--NAME=true`, which vLLM refuses."""

API_SERVER = ("python3", "-m", "vllm.entrypoints.openai.api_server")

SHELLS = frozenset({"ash", "bash", "dash", "fish", "ksh", "sh", "zsh"})
WRAPPERS = frozenset(
    """
    apptainer chrt conda dumb-init env exec ionice mamba micromamba nice nohup numactl pdm pixi poetry screen
    setsid singularity srun stdbuf sudo systemd-run taskset time timeout tini unbuffer uv
    """.split()  # noqa: SIM905 - a list would take a line for each word
)
"""Programs that start the program named after them and pass its words on unchanged."""

_FACTORS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_ENGINE_FLAGS = frozenset({"--runtime", "--backend", "--engine", "--provider"})
_CLI = "vllm.entrypoints.cli.main"
_DEMONSTRATION = "vllm.entrypoints.api_server"
_SERVER_MODULE = re.compile(r"vllm\.entrypoints\.(?:(?:openai|cli)\.\w+|api_server)")
WORKER_MODULE = "dynamo.vllm"
"""A worker of NVIDIA Dynamo: vLLM's engine with its flags, behind Dynamo's own frontend."""
_PROGRAM_WORDS = 8  # of a command line: a wrapper, options of Python, then the program
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_KNOB = re.compile(r"[a-z][a-z0-9_]*(\.[\w.-]+)?")
_GLUED_WORD = re.compile(r"(--[A-Za-z][\w.-]*)[ \t]+(\S.*)", re.DOTALL)
_NAMED = re.compile(r"--?[A-Za-z]")
_NUMBER = re.compile(r"-\.?[0-9]")
_INT = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"\A-?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]{1,3})?")
_SIZE = re.compile(
    r"(?P<number>[0-9]{1,12}(\.[0-9]{1,6})?(?=[kmgt])|[0-9]{1,6}(?=[KMGT]))(?P<suffix>[kmgtKMGT])"
)
_ON, _OFF = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})
_DASHES = ("—", "–", "−")  # noqa: RUF001 - text editors replace -- with them
_JSON_SWITCH = {"true": True, "false": False}
_SECRET_ASSIGNMENT = re.compile(r"\A(?=\w*(KEY|TOKEN|SECRET|PASSWORD))\w+=")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flag:
    """One flag, in argv[start:stop]. `spelled` is "" for a positional model."""

    knob: str
    spelled: str
    value: Value
    start: int
    stop: int
    joined: bool = False  # --knob=value, -O3
    valued: bool = False  # a switch with a value


def parse_setting(argv: Sequence[str]) -> dict[str, Value]:
    """The typed values of the command line's flags, without address and secrets. Raises FlagError.

    Dynamo's own flags for its workers are left out.
    """
    flags = [flag for flag in _flags(argv) if flag.knob not in ADDRESS | SECRETS]
    if is_worker(argv):
        flags = [flag for flag in flags if _is_known(flag.knob.partition(".")[0])]
    return {flag.knob: flag.value for flag in flags}


def parse_address(argv: Sequence[str]) -> Address:
    """Where the server listens; the host is "" (all interfaces) by default. Raises FlagError."""
    place = {flag.knob: flag.value for flag in _flags(argv) if flag.knob in ADDRESS}
    port = place.get("port", 8000)
    if isinstance(port, bool) or not isinstance(port, int):
        raise FlagError("--port has no number after it: give a port")
    return Address(str(place.get("host", "")), port)


def find_second_model(argv: Sequence[str]) -> tuple[str, str] | None:
    """The model that `vllm serve` is given as a word, and that of --model beside it. Raises FlagError."""
    match [flag for flag in _flags(argv) if flag.knob == "model"]:
        case [*_, flag, word] if not word.spelled and "$" not in str(word.value):
            return str(word.value), str(flag.value)
    return None


def edit_flags(argv: Sequence[str], changes: Mapping[str, Value]) -> list[str]:
    """Return `argv` with `changes` applied and all other words unchanged.

    None removes the flag, and so does False for the switches in ONE_WAY; of GLUED and VALUED it removes the
    fault. The last repetition of a flag remains. Raises FlagError if the edit is not safe.
    """
    flags = _flags(argv)
    edits: dict[int, tuple[int, list[str]]] = {}
    appended: list[str] = []
    for knob, value in changes.items():
        if knob in SECRETS or not _KNOB.fullmatch(knob):
            raise FlagError(f"{knob!r} is not the name of a flag")
        own = [flag for flag in flags if flag.knob == knob]
        if knob == GLUED or knob.startswith(f"{VALUED}."):
            edits = (_mend_words(flags, knob) if value is None else {}) | edits
            continue
        if own and is_same(own[-1].value, value):
            continue
        edits |= {flag.start: (flag.stop, []) for flag in own}
        if own and own[-1].valued and isinstance(value, bool) and f"{VALUED}.{knob}" not in changes:
            edits[own[-1].start] = (own[-1].stop, _with_value(own[-1], value))
            continue
        if value is None or (value is False and knob in ONE_WAY):
            continue
        if own:
            edits[own[-1].start] = (own[-1].stop, _words(knob, value, own[-1]))
        else:
            appended += _words(knob, value, None, part_of=_parent_spelling(knob, flags))
    edited: list[str] = []
    at = 0
    for start, (stop, words) in sorted(edits.items()):
        edited += [*argv[at:start], *words]
        at = stop
    return [*edited, *argv[at:], *appended]


def _mend_words(flags: Sequence[_Flag], knob: str) -> dict[int, tuple[int, list[str]]]:
    """The edits that write glued words, or a switch with a value, as vLLM takes them."""
    if knob == GLUED:
        return {
            flag.start: (flag.stop, str(flag.value).split(None, 1)) for flag in flags if flag.knob == GLUED
        }
    return {flag.start: _without_value(flag) for flag in flags if f"{VALUED}.{flag.knob}" == knob}


def insert_file_flags(argv: Sequence[str], words: Sequence[str]) -> list[str]:
    """Insert the flags of the --config file as vLLM does: before those of the command line, which win."""
    at, _ = _head(argv)
    return [*argv[:at], *words, *argv[at:]]


def _parent_spelling(knob: str, flags: Sequence[_Flag]) -> str:
    """The spelling in `flags` of the flag that a dotted knob is a part of; "" if it is absent.

    vLLM merges the parts of one spelling, and uses only the last spelling or JSON value. Raises FlagError.
    """
    first, dot, _ = knob.partition(".")
    parts = [flag.spelled.partition(".")[0] for flag in flags if flag.knob.startswith(first + ".")]
    if not dot or parts:
        return parts[-1] if dot else ""
    if any(flag.knob == first for flag in flags):
        raise FlagError(
            f"{knob} cannot be set together with the JSON of --{first.replace('_', '-')}: "
            "set the entry in that JSON instead"
        )
    return ""


def find_api_key(argv: Sequence[str]) -> str:
    """The API key that the server requires of its clients; "" if it requires no key. Raises FlagError."""
    return next((str(flag.value) for flag in reversed(_flags(argv)) if flag.knob == "api_key"), "")


def is_vllm_server(argv: Sequence[str]) -> bool:
    """Whether a command line starts vLLM's HTTP server, directly or through a wrapper."""
    words = [word.rpartition("/")[2] for word in argv[:_PROGRAM_WORDS]]
    if "vllm" in words and names_engine(words, words.index("vllm")):
        return False
    if ("vllm", "serve") in pairwise(words):
        return True
    modules = [word for word in words if _SERVER_MODULE.fullmatch(word)]
    return bool(modules) and (modules[0] != _CLI or (_CLI, "serve") in pairwise(words))


def names_engine(words: Sequence[str], at: int) -> bool:
    """Whether `vllm` is the value of another program's flag: `ramalama --runtime vllm serve`."""
    return at > 0 and words[at - 1] in _ENGINE_FLAGS


def is_worker(argv: Sequence[str]) -> bool:
    """Whether a command line starts vLLM's engine without its HTTP server, as a worker of Dynamo."""
    return ("-m", WORKER_MODULE) in pairwise(argv[:_PROGRAM_WORDS])


def starts_engine(argv: Sequence[str]) -> bool:
    """Whether a command line starts vLLM as a server of its own or as a worker."""
    return is_vllm_server(argv) or is_worker(argv)


def find_secrets(argv: Sequence[str]) -> tuple[str, ...]:
    """The words that must be masked. Never raises."""
    words: list[str] = []
    secret = False
    for word in argv:
        name, equals, value = word.partition("=")
        if _is_flag(word):
            secret = _knob(name) in SECRETS
            words += [value] if secret and equals else []
        elif secret:
            words.append(word)
        elif _SECRET_ASSIGNMENT.match(word):
            words.append(value)
    return tuple(words)


def _flags(argv: Sequence[str]) -> list[_Flag]:
    at, positional = _head(argv)
    flags: list[_Flag] = []
    model: _Flag | None = None
    if positional and (stray := _count_stray(argv, at)):
        text = " ".join(argv[at : at + stray])
        flags.append(_Flag(knob=STRAY, spelled="", value=text, start=at, stop=at + stray))
        at += stray
    while at < len(argv):
        if _is_flag(argv[at]):
            if _GLUED_WORD.match(argv[at]):
                flags.append(_Flag(knob=GLUED, spelled="", value=argv[at], start=at, stop=at + 1))
            flags.append(_flag(argv, at))
            if (own := flags[-1]).valued:
                text = " ".join(argv[at : own.stop])
                flags.insert(-1, replace(own, knob=f"{VALUED}.{own.knob}", value=text, valued=False))
            at = own.stop
            continue
        if model or not positional:
            last = flags[-1] if flags else None
            if last and last.stop == at and isinstance(last.value, bool) and argv[at].lower() in _ON | _OFF:
                raise FlagError(_no_value(last.knob, last.spelled, argv[at], off=last.value is False))
            if argv[at].startswith(_DASHES):
                raise FlagError(
                    f"{argv[at]} begins with a long dash: write --{argv[at].lstrip('-' + ''.join(_DASHES))}"
                )
            after = last.spelled if last else "the model" if model else argv[0]
            raise FlagError(
                f"a word after {after} belongs to no flag: write one value per flag, as --flag=value"
            )
        model = _Flag(knob=positional, spelled="", value=argv[at], start=at, stop=at + 1)
        at += 1
    return [*flags, model] if model else flags  # last: in vLLM the positional model overrides --model


def find_program(argv: Sequence[str]) -> int:
    """The index of the word that starts the server, after `nohup` or `numactl -N 0`. Raises FlagError."""
    wrapped = bool(argv) and argv[0].rpartition("/")[2] in WRAPPERS
    for at, word in enumerate(argv):
        program = word.rpartition("/")[2]
        if program in SHELLS:
            raise FlagError(f"the command starts a shell ({program}): give the server's command line instead")
        served = program == "vllm" and (not wrapped or list(argv[at + 1 : at + 2]) == ["serve"])
        if served or _is_python(argv, at) or not wrapped:
            return at
    raise FlagError("no server is named: start with `vllm serve MODEL` or `python -m MODULE`")


def _is_python(argv: Sequence[str], at: int) -> bool:
    """By its name, or as a variable before `-m`."""
    named = _PYTHON.fullmatch(argv[at].rpartition("/")[2]) is not None
    return named or ("$" in argv[at] and list(argv[at + 1 : at + 2]) == ["-m"])


def replace_program(argv: Sequence[str], program: str) -> tuple[list[str], str]:
    """Return the command line with another program, and the present one, a path or a name. Raises FlagError.

    `python FILE` is one program, since FILE belongs to the same environment as that Python.
    """
    at = find_program(argv)
    is_python = _PYTHON.fullmatch(program.rpartition("/")[2]) is not None
    if _PYTHON.fullmatch(argv[at].rpartition("/")[2]) is None:
        after, present = at + 1, argv[at]
    elif "-m" in argv[at : _after_python(argv, at + 1)]:
        if not is_python:
            raise FlagError(
                f"command={program} was requested, and the server is started by `python -m`: request the "
                "Python of the other environment, such as /opt/vllm/bin/python"
            )
        return [*argv[:at], program, *argv[at + 1 :]], argv[at]
    else:
        after = _after_python(argv, at + 1)
        after -= argv[after - 1] == "serve"
        present = argv[after - 1]
    if is_python:
        raise FlagError(f"command={program} was requested, and it is a Python: request the vllm beside it")
    return [*argv[:at], program, *argv[after:]], present


def _count_stray(argv: Sequence[str], at: int) -> int:
    """How many words after the program start the server once more, as in `vllm serve vllm serve MODEL`."""
    words = [word.rpartition("/")[2] for word in argv[at : at + 3]]
    if words and _PYTHON.fullmatch(words[0]):
        return 3 if words[1:2] == ["-m"] and _SERVER_MODULE.fullmatch(words[-1]) else 0
    return 2 if words[:2] == ["vllm", "serve"] else 1 if words[:1] == ["serve"] else 0


def _head(argv: Sequence[str]) -> tuple[int, str]:
    """The index of the first flag, and the name of a positional model; "" without one. Raises FlagError."""
    start = find_program(argv)
    program = argv[start].rpartition("/")[2]
    if program == "vllm":
        return _after_serve(argv, start + 1, required=True), "model"
    if _is_python(argv, start):
        after = _after_python(argv, start + 1)
        return after, UNNAMED_MODEL if argv[after - 1] == API_SERVER[-1] else "model"
    after = _after_serve(argv, start + 1, required=False)
    return after, "model" if after == len(("program", "serve")) else ""


def _after_serve(argv: Sequence[str], at: int, *, required: bool) -> int:
    if list(argv[at : at + 1]) == ["serve"]:
        return at + 1
    if required:
        raise FlagError("`vllm` starts a server only if `serve` follows directly")
    return at


def _after_python(argv: Sequence[str], at: int) -> int:
    while at < len(argv):
        word = argv[at]
        if word == "-m" and at + 1 < len(argv):
            if argv[at + 1] == _DEMONSTRATION:
                raise FlagError(
                    f"{_DEMONSTRATION} was a demonstration, with /generate alone, gone from vLLM 0.32: "
                    f"start `vllm serve MODEL` or `python3 -m {API_SERVER[-1]}`"
                )
            return _after_serve(argv, at + 2, required=argv[at + 1] in {"vllm", "vllm.entrypoints.cli.main"})
        if word.startswith("-c"):
            raise FlagError("the command runs `python -c`: name a module or a file instead")
        if not word.startswith("-"):
            return _after_serve(argv, at + 1, required=word.rpartition("/")[2] == "vllm")
        at += 2 if word in {"-W", "-X"} else 1
    raise FlagError("python has no module and no file to run: write `python -m MODULE`")


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NUMBER.match(word)


def _flag(argv: Sequence[str], at: int) -> _Flag:
    word = argv[at]
    if not _NAMED.match(word):
        raise FlagError(f"{word.partition('=')[0]!r} among the flags cannot be read")
    name, equals, text = word.partition("=")
    if glued := _GLUED_WORD.match(word):
        name, equals, text = glued[1], "=", glued[2]
    if not name.startswith("--") and name[1] in "Onqr" and len(name) > len("-O") and name[1:] not in SHORT:
        name, equals, text = word[:2], "=", word[2:].removeprefix("=")
    knob = _knob(name)
    off = name.startswith(("--no-", "--no_"))
    has_value = not off and not _is_known(knob) and (equals or _is_truth(argv[at + 1 : at + 2]))
    if (off or is_switch(knob)) and not has_value:
        if equals and text.lower() not in _ON | _OFF:
            raise FlagError(_no_value(knob, name, text, off=off))
        if equals or _is_truth(argv[at + 1 : at + 2]):
            on = (text if equals else argv[at + 1]).lower() in _ON
            stop = at + 1 if equals else at + 2
            return _Flag(knob=knob, spelled=name, value=on != off, start=at, stop=stop, valued=True)
        return _Flag(knob=knob, spelled=name, value=not off, start=at, stop=at + 1)
    if equals:
        return _Flag(
            knob=knob, spelled=name, value=_typed(knob, text), start=at, stop=at + 1, joined=not glued
        )
    stop = at + 1
    most = len(argv) if knob in SEVERAL else at + 2
    while stop < min(most, len(argv)) and not _is_flag(argv[stop]):
        stop += 1
    words = argv[at + 1 : stop]
    value: Value = True  # an unknown flag without a value is a switch
    if words:
        value = _typed(knob, words[0]) if len(words) == 1 else shlex.join(words)
    return _Flag(knob=knob, spelled=name, value=value, start=at, stop=stop)


def _knob(name: str) -> str:
    """The canonical name of a spelling: `--max_num-seqs`, `--no-enforce-eager`, `-tp`, `-cc.mode`."""
    first, dot, rest = name.lstrip("-").partition(".")
    first = first.replace("-", "_") if name.startswith("--") else SHORT.get(first, first.replace("-", "_"))
    first = first.removeprefix("no_")
    return _unabbreviated(ALIASES.get(first, first)) + dot + rest


def _is_known(name: str) -> bool:
    return name in NAMES or name in KNOBS or name in RENAMED


def _is_truth(words: Sequence[str]) -> bool:
    """Whether the next word is `true` or `false`: the value of a flag that vLLM does not have."""
    return bool(words) and words[0].lower() in {"true", "false"}


@lru_cache(maxsize=1024)
def _unabbreviated(name: str) -> str:
    """The flag of which the name is an unambiguous prefix, as the parser takes it."""
    if _is_known(name):
        return name
    longer = {ALIASES.get(flag, flag) for flag in NAMES if flag.startswith(name)}
    return longer.pop() if len(longer) == 1 else name


def _without_value(flag: _Flag) -> tuple[int, list[str]]:
    """The end of a switch with a value, and the words that say the same as vLLM takes them."""
    left_out = flag.value is False and flag.knob in ONE_WAY
    return flag.stop, [] if left_out else _words(flag.knob, flag.value, flag)


def _with_value(flag: _Flag, value: bool) -> list[str]:
    """The words of a switch with another value, for a release that takes one."""
    text = str(value).lower()
    return [f"{flag.spelled}={text}"] if flag.stop == flag.start + 1 else [flag.spelled, text]


def _no_value(knob: str, name: str, text: str, *, off: bool) -> str:
    """The error for `--switch=False`, which vLLM refuses, with what to write instead."""
    plain = knob.replace("_", "-")
    word = text.lower()
    if knob in ONE_WAY and (word in _OFF) != off:
        return f"{name} takes no value, found {text!r}: leave it out"
    wanted = "no-" * ((word in _OFF) != off) + plain
    return f"{name} takes no value, found {text!r}: write --{wanted}" + " or leave it out" * (
        word not in _ON | _OFF
    )


def _typed(knob: str, word: str) -> Value:
    if "." in knob and word in _JSON_SWITCH:
        return _JSON_SWITCH[word]
    if knob in SEVERAL and shlex.quote(word) != word:
        return shlex.quote(word)
    if knob in TEXTS:
        return word
    if knob in SIZES and (size := _SIZE.fullmatch(word)):
        return int(float(size["number"]) * _FACTORS[size["suffix"]])
    if _INT.fullmatch(word):
        return int(word)
    if _FLOAT.fullmatch(word) and isfinite(number := float(word)):
        return number
    return word


def _words(knob: str, value: Value, like: _Flag | None, *, part_of: str = "") -> list[str]:
    """The words for a flag, spelled as `like` or, without it, in vLLM's own way. Raises FlagError."""
    first, dot, rest = knob.partition(".")
    plain = (part_of or "--" + first.replace("_", "-")) + dot + rest
    name = like.spelled if like else plain
    if name.startswith(("--no-", "--no_")):
        name = "--" + name[len("--no-") :]
    if value is True and not dot:
        return [name or plain]
    if value is False and not dot:
        underscored = "_" in name.partition(".")[0]
        return [f"--no_{knob}" if underscored else "--no-" + plain.removeprefix("--")]
    texts = _texts(knob, value)
    if not name:
        if len(texts) != 1 or _is_flag(texts[0]):
            raise FlagError(f"{knob} = {value!r} cannot be given as the model's positional argument")
        return texts
    if len(texts) > 1:
        if any(map(_is_flag, texts)):
            raise FlagError(f"{knob} = {value!r}: a value in a list cannot start with -")
        return [name, *texts]
    if name == "-O":
        return [f"-O{texts[0]}"]
    if (like and like.joined) or _is_flag(texts[0]):
        return [f"{name}={texts[0]}"]
    return [name, *texts]


def _texts(knob: str, value: Value) -> list[str]:
    if isinstance(value, float) and not isfinite(value):
        raise FlagError(f"{knob} = {value} is not a finite number")
    if isinstance(value, bool):
        return [str(value).lower()]
    if knob not in SEVERAL or not isinstance(value, str):
        return [repr(value) if isinstance(value, float) else str(value)]
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise FlagError(f"{knob} = {value!r}: {error}") from error
    if not words:
        raise FlagError(f"{knob} needs at least one value")
    return words
