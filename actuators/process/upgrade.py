"""Check another program and other variables before any server starts with them."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from flettner.actuators.host.origin import Origin
from flettner.actuators.vllm.release_change import ReleaseChange, find_release_change
from flettner.agent.domain.upgrade import COMMAND, IMAGE
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.values import Knob, Setting, Value

_VERSION = "from importlib.metadata import version; print(version('vllm'))"  # without an import of vLLM
_VERSION_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """`resolved`: present and new value of each; `flags`: how the new release writes the server's."""

    resolved: Mapping[Knob, tuple[Value, Value]] = field(default_factory=dict)
    flags: ReleaseChange = field(default_factory=ReleaseChange)
    notes: tuple[str, ...] = ()  # for the operator who approves


async def check_upgrade(present: Origin, start: Setting, setting: Setting, *, runs: bool) -> Upgrade:
    """`setting`: of the new server; `runs`: whether programs may be started, to ask for their versions.

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
    old, new = await asyncio.gather(find_version(present), find_version(upgraded))
    versions = f"vLLM {old or 'of an unknown version'} → {new or 'an unknown version'}"
    if not old or not new:
        return Upgrade(resolved=resolved, notes=(versions,))
    change = await asyncio.to_thread(find_release_change, setting, upgraded.env, old, new)
    if change.problem:
        raise FlagError(change.problem)
    return Upgrade(resolved={**resolved, **change.resolved}, flags=change, notes=(versions, *change.notes))


async def find_version(origin: Origin) -> str:
    """Return `0.33.0`, as the Python beside the program says it; empty if it is not known."""
    python = Path(origin.program_path()).parent / "python"
    with suppress(OSError, TimeoutError):
        process = await asyncio.create_subprocess_exec(
            str(python),
            "-I",
            "-c",
            _VERSION,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), _VERSION_S)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if process.returncode == 0:
            return output.decode(errors="replace").strip()[:40]
    return ""
