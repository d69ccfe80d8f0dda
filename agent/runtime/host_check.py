"""Whether a config can work on this host: its credentials, programs, locks, receivers and folders."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from flettner.agent.api.credentials import ApiCredentials
from flettner.agent.config.loader import Config
from flettner.agent.domain.errors import ActError, ConfigError, NoticeError
from flettner.agent.domain.ports import Traffic
from flettner.agent.gitops.check import find_git_problems
from flettner.agent.runtime.api_check import find_api_problems
from flettner.agent.runtime.lock import find_lock_problems
from flettner.agent.runtime.wiring import bind_actuators, build_delivery
from flettner.primitives.address import UnixSocket
from flettner.primitives.wall_clock import utc_now


async def find_problems(config: Config) -> list[str]:
    """List why this config cannot work on this host, one line each with its key; empty if it can."""
    problems = []
    try:
        ApiCredentials.of(config.api, utc_now)
    except ConfigError as error:
        problems.append(str(error))
    problems += find_api_problems(config, utc_now)
    for target in config.targets:
        engine, traffic = bind_actuators(config, target, epoch=0, acts=config.mode != "advise")
        of_engine, of_traffic = await asyncio.gather(engine.problems(), _list_problems(traffic))
        problems += [f"[targets.engine] {target.name}: {what}" for what in of_engine]
        problems += [f"[targets.traffic] {target.name}: {what}" for what in of_traffic]
    if config.mode != "advise":
        problems += await find_lock_problems(config)
    sockets = [listener for listener in config.api.listen if isinstance(listener, UnixSocket)]
    needed = [
        ("[agent] state_dir", config.state_dir),
        *(("[api] listen", listener.path.parent) for listener in sockets),
    ]
    for target in config.targets:
        if target.git is not None:
            found = await find_git_problems(target.git)
            problems += [f"[targets.git] {target.name}: {what}" for what in found]
    for receiver in config.notify:
        try:
            build_delivery(config, receiver, None, {}).check()
        except NoticeError as error:
            problems.append(f"[[notify]] {receiver.name}: {error}")
    return problems + [why for why in (find_write_error(key, folder) for key, folder in needed) if why]


async def find_obstacles(config: Config) -> list[str]:
    """List why no server can be changed, one line each; that is no problem in `advise`, where none is."""
    obstacles = []
    for target in config.targets:
        engine, _ = bind_actuators(config, target, epoch=0, acts=False)
        obstacles += [f"[targets.engine] {target.name}: {what}" for what in await engine.obstacles()]
    return obstacles


async def _list_problems(traffic: Traffic) -> Sequence[str]:
    try:
        return await traffic.problems()
    except ActError as error:
        return [error.why]


def find_write_error(key: str, folder: Path) -> str:
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        probe = nearest / ".flettner-check"
        probe.touch()
        probe.unlink()
    except OSError as error:
        return f"{key}: {nearest} is not writable: {error.strerror}; choose a directory that you own"
    return ""
