"""A site whose server has flettner's scheduler class, and what its control endpoint says."""

from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any

import aiohttp

from flettner.vllm_facts.live_limits import SCHEDULER_CLASS
from tests.support.config_builder import SERVER, SERVERS, SiteConfig

LIMITS = ("--max-num-seqs", "16", "--max-num-active-seqs", "2", "--scheduler-cls", SCHEDULER_CLASS)
SIMULATED = (*SERVER, "--sim-start-s", "0.2", *LIMITS)


@dataclass(frozen=True, kw_only=True)
class HotSiteConfig(SiteConfig):
    """`folder`: of the sockets; a short path."""

    folder: str
    command: tuple[str, ...] = SIMULATED
    env: tuple[tuple[str, str], ...] = ()

    def engine(self) -> str:
        env = {**dict(self.env), "FLETTNER_CONTROL": f"{self.folder}/control.sock"}
        return f"""
            kind = "process"
            command = {dumps(self.command)}
            env = {{ {", ".join(f"{name} = {dumps(value)}" for name, value in env.items())} }}
            ports = [{SERVERS[0]}, {SERVERS[-1]}]
            stop_s = 5.0
        """


async def knobs(config: HotSiteConfig, server: str = "chat-r1") -> dict[str, Any]:
    """What the endpoint answers; empty while it does not."""
    path = Path(config.folder, f"{server}.sock")
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
            session.get("http://engine/knobs") as answer,
        ):
            return dict(await answer.json())
    except (OSError, aiohttp.ClientError):
        return {}


async def cap(config: HotSiteConfig, server: str = "chat-r1") -> int:
    """The running requests that are allowed now; 0 while the server does not answer."""
    document = await knobs(config, server)
    return int(document["in_force"]["max_num_seqs"]) if document else 0
