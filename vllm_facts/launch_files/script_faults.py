"""Faults of a script by which its server does not run, or not for long, whatever its flags are."""

import re
from collections.abc import Iterator, Sequence

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.launch import Launch, Word, line_of
from flettner.vllm_facts.launch_files.shell_words import split_commands
from flettner.vllm_facts.releases.history import read_history
from flettner.vllm_facts.serve_config import EntryFault
from flettner.vllm_facts.shell_command.docker_run import CONTAINERS

_STRICT = re.compile(r"-[a-z]{0,9}e[a-z]{0,9}")
_SETS = frozenset({"export", "declare", "typeset", "readonly", "local"})
_ONE_SET = re.compile(r"[A-Za-z_]\w{0,80}=")
_OF_LIBRARIES = frozenset(
    """
    CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HF_HOME HF_TOKEN HF_HUB_OFFLINE HF_HUB_CACHE
    NCCL_P2P_DISABLE NCCL_IB_DISABLE NCCL_SOCKET_IFNAME NCCL_DEBUG GLOO_SOCKET_IFNAME OMP_NUM_THREADS
    PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF TORCH_CUDA_ARCH_LIST TRANSFORMERS_OFFLINE
    """.split()  # noqa: SIM905 - a list would take a line for each word
)
_JOB = re.compile(r"^#SBATCH\b", re.MULTILINE)
_DUPLICATES = re.compile(r"\d?>&\d|&>>?")  # of a redirection: no operator
_BACKGROUND = re.compile(r"\A[^\n;|&]{0,2000}&(?!&)")
_SAYS = frozenset({"echo", "printf", "disown", "exit", "date", "true"})


def find_script_faults(text: str, launches: Sequence[Launch]) -> list[EntryFault]:
    """Why the servers of a script do not run as they are meant to, in its order. Raises FlagError."""
    placed = [word.end for launch in launches for word in launch.words if word.end]
    if not placed:
        return []
    commands = split_commands(text)
    before = [command for command in commands if command[0].start < launches[0].start]
    faults = [EntryFault(why, of="script") for why in _explain_lost_assignments(text, before, launches)]
    if _JOB.search(text):
        why = (
            _explain_end_of_job(text, max(placed))
            if text.startswith("#!")
            else "line 1 does not begin with #!, so that sbatch takes the file for no script"
        )
        faults += [EntryFault(why, of="script")] if why else []
    return [*faults, *_explain_kept_variables(text, before, launches)]


def _explain_lost_assignments(
    text: str, commands: Sequence[Sequence[Word]], launches: Sequence[Launch]
) -> Iterator[str]:
    """`NAME = VALUE` under `set -e`, or where the server's command uses the name."""
    strict = False
    used = " ".join(word.text for launch in launches for word in launch.words if word.live)
    for command in commands:
        words = [word.text for word in command]
        strict = strict or (words[0] == "set" and any(map(_STRICT.fullmatch, words[1:])))
        rest = words[1:] if words[0] in _SETS else words
        if rest[1:2] != ["="] or not rest[0].isidentifier() or _is_arithmetic(text, command[0].start):
            continue
        line = line_of(text, command[0].start)
        why = f"line {line}: with blanks around its = the value of {rest[0]} is not set"
        if strict:
            yield f"{why}, and `set -e` ends the script there"
        elif f"${rest[0]}" in used or f"${{{rest[0]}" in used:
            yield f"{why}, and the server's command is put together without it"


def _is_arithmetic(text: str, at: int) -> bool:
    """`for ((i = 1; …))`, in which blanks around = are fine."""
    return text[max(0, at - 200) : at].rstrip().endswith("(")


def _explain_kept_variables(
    text: str, commands: Sequence[Sequence[Word]], launches: Sequence[Launch]
) -> Iterator[EntryFault]:
    """Variables for the server that the script sets for itself alone."""
    given = {word.text.partition("=")[0] for launch in launches for word in launch.words}
    exported = {name for launch in launches for name in launch.env} | given
    if CONTAINERS & given or any(map(_exports_all, commands)):
        return
    for command in commands:
        for word in command if all(map(_ONE_SET.match, (word.text for word in command))) else ():
            name, _, value = word.text.partition("=")
            is_own = name in read_history().variables or name in _OF_LIBRARIES
            if not is_own or not value or name in exported or _uses(text, name):
                continue
            line = line_of(text, word.start)
            yield EntryFault(
                f"line {line}: {name} is set for the script alone, the server does not get it", of="variable"
            )


def _exports_all(command: Sequence[Word]) -> bool:
    """`set -a`, or another script that may export what this one sets."""
    words = [word.text for word in command]
    return words[:2] == ["set", "-a"] or words[:3] == ["set", "-o", "allexport"]


def _uses(text: str, name: str) -> bool:
    """Whether the script uses the variable, or exports it."""
    return re.search(rf"\$\{{?{name}\b|\b(?:export|-x)\b[^\n]*\b{name}\b", text) is not None


def _explain_end_of_job(text: str, end: int) -> str:
    """A server in the background of a job for which the script does not wait."""
    rest = _DUPLICATES.sub(" ", text[end:].replace("\\\n", " "))
    background = _BACKGROUND.match(rest)
    if background is None:
        return ""
    try:
        later = split_commands(rest, background.end())
    except FlagError:  # the server's command is a part of another one
        return ""
    if any(command[0].text not in _SAYS for command in later):
        return ""
    return (
        "the script ends while the server runs in the background, and Slurm ends a job with its script (take "
        "the & away, or let the script `wait`)"
    )
