"""`docker run [options] IMAGE [words]`: the server's command line and environment in it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import API_SERVER, SHELLS
from flettner.vllm_facts.releases import TABLE
from flettner.vllm_facts.releases.history import is_known_flag
from flettner.vllm_facts.serve_config import EntryFault
from flettner.vllm_facts.shell_command.shell import split_command

HOW = "write the server's own words after --, as in `flettner lint -- vllm serve MODEL --max-num-seqs 64`"
STARTS = frozenset({"run", "create"})
"""Commands of Docker with the same options and words."""

CONTAINERS = frozenset({"docker", "nerdctl", "podman"})
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
_VARIABLE = re.compile(r"\$\w{1,80}|\$\{\w{1,80}(?:\[[@*]\])?\}")
_OF_DOCKER_ALONE = frozenset(
    {
        *("-e", "--env", "--env-file", "-v", "--volume", "--mount", "-p", "--publish", "--name", "--gpus"),
        *("--entrypoint", "--ipc", "--shm-size", "--network", "--net", "--restart", "--device", "--ulimit"),
        *("--memory", "--memory-swap", "--cpus", "--user", "-u", "-w", "--workdir", "--label", "-l"),
        *("--runtime", "--cap-add", "--security-opt", "--group-add", "--add-host", "--pull", "--hostname"),
    }
)
"""Options of Docker that are no flags of a server."""
_ENV = ("-e", "--env")
_OTHERS = ("host", "none", "container:")  # networks without ports of the container's own
_NETWORK, _PUBLISH = frozenset({"--net", "--network"}), frozenset({"-p", "--publish"})
_AMOUNT = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,6})?) ?(?P<unit>[kKmMgGtT]?)(?P<binary>i?)[bB]?")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_OF_DOCKER = frozenset({"m", "g", "t"})  # Kubernetes reads m as thousandths, and has no g and t
_PUBLISHED = re.compile(r"(?:\S{0,200}:)?(?P<port>\d{1,5})(?:/tcp)?")
_MOUNT = frozenset({"-v", "--volume", "--mount"})
_MOUNTED = re.compile(
    r"(?:^|,)(?:target|destination|dst)=(?P<target>/[^,]{1,400})|^[^,=:]{1,400}:(?P<bind>/[^:]{1,400})"
)
_PACKAGE = re.compile(r"/(?:(?:site|dist)-packages|vllm-workspace)/vllm(?:/|$)")
_SCRIPT_OPTION = re.compile(r"-[a-z]*c")
_SERVER_COMMAND = re.compile(
    r"(?:^|&&|;|\n)[ \t]*((?:exec\s+)?(?:\w{1,80}=\S*[ \t]+)*"
    r"(?:vllm\s+serve|python[\d.]*\s+-m\s+(?:vllm\.|dynamo\.vllm))\b)"
)
_SERVE = ("vllm", "serve")
_OWN_IMAGE = re.compile(r"\A(.*/)?vllm-openai(-[\w.-]+)?([:@].*)?")  # its entrypoint starts the server
SERVES_SINCE = (0, 11, 1)
"""Up to 0.11.0 the entrypoint is the module `api_server`, since then `vllm serve` (docker/Dockerfile)."""
_SHARED_SINCE = (0, 5)  # releases that images of others are built of
_RAY_IMAGE = re.compile(r"(?:^|/)rayproject/ray-llm:(?P<release>\d+\.\d+)\b")
_OF_RAY = {
    "2.50": "0.10.2",
    "2.51": "0.11.0",
    "2.52": "0.11.0",
    "2.54": "0.15.0",
    "2.55": "0.18.0",
    "2.58": "0.26.0",
}
"""The release of vLLM in Ray's images: ray-project/ray#57591, #57201, #60679, and what they print of it."""
_OTHER_VERSIONS = re.compile(r"(^|/)(lmcache|ai-dynamo)/")  # images with tags of their own projects


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerRunCommand:
    """`before`: the words up to the image; `implied`: leading words of `argv` that the image adds.

    `shell`: the words before a script that holds `argv`, and `lead` the script's text before them.
    """

    before: tuple[str, ...]
    argv: tuple[str, ...]
    implied: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    shell: tuple[str, ...] = ()
    lead: str = ""
    aside: tuple[str, ...] = ()
    entry_fault: EntryFault | None = None


def parse_docker_run(words: list[str], outside: Mapping[str, str]) -> DockerRunCommand:
    """Parse a `docker run` command. vLLM's own images add `vllm serve`. Raises FlagError.

    `outside`: the variables of the shell, from which `-e NAME` takes its value.
    """
    if not STARTS.intersection(words[1:2]):
        raise FlagError(f"{' '.join(words[:2])}: only `{words[0]} run … IMAGE …` can be read; {HOW}")
    at, options = _options(words)
    if at >= len(words):
        raise FlagError(f"{words[0]} run: no image is named; {HOW}")
    given = (value.partition("=") for name, value in options if name in _ENV)
    env = {
        name: value if equals else outside[name] for name, equals, value in given if equals or name in outside
    }
    entry = next((value for name, value in options if name == "--entrypoint"), "")
    own = words[at + 1 :]
    before = tuple(words[: at + 1])
    program = (entry or (own[0] if own else "")).rpartition("/")[2]
    if program in SHELLS and (script := _find_script(own)):
        place, lead, argv, aside = script
        fault = None if entry else explain_entry(words[at], program)
        shell = tuple(own[:place])
        return DockerRunCommand(
            before=before, argv=argv, env=env, shell=shell, lead=lead, aside=aside, entry_fault=fault
        )
    argv, implied = _server(words[at], entry, own)
    return DockerRunCommand(before=before, argv=argv, implied=implied, env=env)


def _holds_options(words: Sequence[str]) -> bool:
    """Whether a variable stands for options of Docker or for nothing: another option of Docker follows it."""
    if len(words) == 1 or not _VARIABLE.fullmatch(words[0]):
        return False
    name = words[1].partition("=")[0]
    return name in _ALONE | _OF_DOCKER_ALONE or _SHORT_ALONE.fullmatch(name) is not None


def option_variables(before: Sequence[str]) -> frozenset[str]:
    """The words among Docker's options that a shell has to split, or to drop where they are empty."""
    return frozenset(word for word, following in pairwise(before) if _holds_options((word, following)))


def _options(words: Sequence[str]) -> tuple[int, list[tuple[str, str]]]:
    """The index of the image, and the options before it."""
    at, options = 2, []
    while at < len(words) and (words[at].startswith("-") or _holds_options(words[at : at + 2])):
        if not words[at].startswith("-"):
            at += 1
            continue
        name, equals, value = words[at].partition("=")
        if not equals and name not in _ALONE and not _SHORT_ALONE.fullmatch(name):
            at += 1
            value = words[at] if at < len(words) else ""
        options.append((name, value))
        at += 1
    return at, options


def read_gib(text: str, *, binary: bool = False) -> float | None:
    """`120Gi`, `64G` or `8g`. `binary`: powers of 1,024 in either case, as Docker has them."""
    amount = _AMOUNT.fullmatch(text.strip())
    if not amount or not float(amount["number"]) or (not binary and amount["unit"] in _OF_DOCKER):
        return None
    base = 1024.0 if binary or amount["binary"] else 1000.0
    return float(amount["number"]) * float(base ** _POWERS[amount["unit"].upper()]) / 2**30


def published_ports(before: Sequence[str]) -> tuple[int, ...]:
    """The ports of the container to which `docker run … IMAGE` leads requests, as far as they are known."""
    _, options = _options(before)
    if any(name in _NETWORK and value.startswith(_OTHERS) for name, value in options):
        return ()
    given = [read_published_port(value) for name, value in options if name in _PUBLISH]
    ports = [port for port in given if port is not None]
    return tuple(dict.fromkeys(ports)) if len(ports) == len(given) else ()


def mounted_paths(before: Sequence[str]) -> tuple[str, ...]:
    """The paths in the container at which `docker run … IMAGE` mounts something."""
    _, options = _options(before)
    given = [_MOUNTED.search(value) for name, value in options if name in _MOUNT]
    return tuple(place["bind"] or place["target"] for place in given if place)


def find_overlays(paths: Iterable[str]) -> tuple[str, ...]:
    """Those of the mounted paths that hide files of vLLM's package in the image."""
    return tuple(path for path in paths if _PACKAGE.search(path))


def read_published_port(text: str) -> int | None:
    """The port of the container in `[[HOST:]PORT:]PORT[/tcp]`; None for a range or another protocol."""
    published = _PUBLISHED.fullmatch(text)
    return int(published["port"]) if published else None


def script_place(words: Sequence[str]) -> int | None:
    """The place of the script after `-c`, `-lc` or `-c -i`; None without one."""
    option = next((at for at, word in enumerate(words) if _SCRIPT_OPTION.fullmatch(word)), len(words))
    return next((at for at in range(option + 1, len(words)) if not words[at].startswith("-")), None)


def _find_script(own: Sequence[str]) -> tuple[int, str, tuple[str, ...], tuple[str, ...]] | None:
    """The place of the script of `-c`, its text before the server's command, its words and redirections.

    None if it starts no vLLM. Raises FlagError if more commands follow.
    """
    place = script_place(own)
    command = _SERVER_COMMAND.search(own[place]) if place is not None else None
    if place is None or command is None:
        return None
    words, aside = split_command(own[place][command.start(1) :])
    return place, own[place][: command.start(1)], tuple(words), tuple(aside)


def explain_entry(image: str, program: str) -> EntryFault | None:
    """Why a shell after one of vLLM's own images does not start; None for other images."""
    if not is_vllm_image(image):
        return None
    starts = " ".join(implied_words(image))
    return EntryFault(
        f"{image} starts `{starts}` by itself, which takes {program!r} as the model and refuses the rest"
    )


def _server(image: str, entry: str, own: list[str]) -> tuple[tuple[str, ...], int]:
    """The server's words, and the number of leading words that the image adds. Raises FlagError."""
    program = (entry or (own[0] if own else "")).rpartition("/")[2]
    if program in SHELLS:
        raise FlagError(f"in {image} {explain_shell(own)}")
    starts = program.startswith(("vllm", "python"))
    if entry:
        if not starts:
            raise FlagError(f"--entrypoint {entry}: the program that the image starts is unknown; {HOW}")
        return (entry, *own), 1
    if is_vllm_image(image):
        implied = implied_words(image)
        return (*implied, *own), len(implied)
    if own[:1] == ["serve"]:
        return ("vllm", *own), 1
    return (tuple(own), 0) if starts else ((*_SERVE, *own), len(_SERVE))


def is_vllm_image(image: str) -> bool:
    """Whether the image starts the server by itself."""
    return _OWN_IMAGE.fullmatch(image) is not None


def are_server_flags(words: Sequence[str]) -> bool:
    """Whether these are a model and flags of vLLM alone, for an image of someone's own build of vLLM.

    A service that is built (`build:` in compose) has no image. More than one flag tells vLLM's list from
    another server's.
    """
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    first = words[0] if words else ""
    has_model = (
        "--model" in flags and len(flags) > 1 if first.startswith("--") else "/" in first and len(flags) > 1
    )
    return has_model and all(map(_is_known, flags))


def _is_known(flag: str) -> bool:
    name = flag.removeprefix("--").replace("-", "_")
    plain = name.removeprefix("no_")
    return name in TABLE or plain in TABLE or is_known_flag(name) or is_known_flag(plain)


def runs_server(words: Sequence[str]) -> bool:
    """Whether `docker run …` starts vLLM: by one of its images, or an image named so with its flags."""
    entry = _entrypoint(words)
    if entry == "vllm" and "serve" in words:
        return True
    if entry.startswith("python") and not any(word.startswith("vllm.") for word in words):
        return False
    return any(
        is_vllm_image(word) or ("vllm" in word.rpartition("/")[2] and are_server_flags(words[at + 1 :]))
        for at, word in enumerate(words)
    )


def _entrypoint(words: Sequence[str]) -> str:
    """The program of `--entrypoint`; "" without one."""
    for word, following in pairwise((*words, "")):
        if word.partition("=")[0] == "--entrypoint":
            return (word.partition("=")[2] or following).rpartition("/")[2]
    return ""


def implied_words(image: str) -> tuple[str, ...]:
    """The words of the entrypoint of one of vLLM's own images, by its release."""
    version = image_version(image)
    old = version and tuple(map(int, version.split("."))) < SERVES_SINCE
    return API_SERVER if old else _SERVE


def image_version(image: str) -> str:
    """The vLLM version in the image's tag; "" if the tag has none, or has that of another project.

    The first releases have no tags but those of vLLM's own images: 0.1.1 of another image counts its builds.
    """
    place, _, tag = image.partition("@")[0].rpartition(":")  # without the digest
    if ray := _RAY_IMAGE.search(image):
        return _OF_RAY.get(ray["release"], "")
    named = re.search(r"vllm[_-]?v?(0\.\d+\.\d+)", tag)
    own = re.match(r"v?(0\.\d+\.\d+)(?![\d.]*\.)", tag) if "vllm" in place.rpartition("/")[2] else None
    counted = own and not is_vllm_image(image) and tuple(map(int, own[1].split("."))) < _SHARED_SINCE
    version = named or (None if counted or _OTHER_VERSIONS.search(place) else own)
    return version[1] if version else ""


def explain_shell(words: Sequence[str]) -> str:
    """The error text for `sh -c "…"`, with the command to check instead."""
    script = next((word for word in words if "vllm serve" in word), "")
    if script:
        own = script[script.index("vllm serve") :]
        return (
            f"a shell starts the server: lint the command that the shell runs, as in `flettner lint -- {own}`"
        )
    return f"a shell starts the server: lint the command that the shell runs; {HOW}"


def replace_env(before: Sequence[str], env: Mapping[str, str | None]) -> tuple[str, ...]:
    """Replace the `-e K=V` options of the changed variables; None removes the option."""
    words: list[str] = []
    at = 0
    while at < len(before):
        name, equals, value = before[at].partition("=")
        separate = name in _ENV and not equals
        value = before[at + 1] if separate and at + 1 < len(before) else value
        if name not in _ENV or value.partition("=")[0] not in env:
            words += before[at : at + 1 + separate]
        at += 1 + separate
    new = [word for name, value in env.items() if value is not None for word in ("-e", f"{name}={value}")]
    return (*words[:-1], *new, words[-1])
