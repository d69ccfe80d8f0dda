"""vLLM's sleep mode over HTTP: the weights wait in host memory, GPU memory is free, a wake takes seconds.

vLLM 0.32, vllm/entrypoints/serve/dev/sleep/api_router.py: the routes exist with VLLM_SERVER_DEV_MODE=1.
Without `--enable-sleep-mode`, and on a CPU, `/sleep` answers 200 and frees nothing: what is free has to be
measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from flettner.agent.domain.errors import ActError
from flettner.primitives.bounded import parse_json, read_body
from flettner.vllm_facts.dev_routes import DEV_MODE
from flettner.vllm_facts.values import Setting

FLAG = "enable_sleep_mode"
OFFLOAD = 1  # level: weights to host memory, the KV cache is dropped
_WITHIN_S = 120.0  # 200 GB at 4 GB/s, a slow transfer to host memory that is not pinned yet, take 50 s
_MOST_BYTES = 65_536
_SHOWN = 300


def why_unavailable(setting: Setting, env: Mapping[str, str]) -> str:
    """Why a server of this command has no sleep mode, with the fix; empty if it has."""
    missing = []
    if setting.get(FLAG) is not True:
        missing.append("--enable-sleep-mode")
    if env.get(DEV_MODE) != "1":
        missing.append(f"{DEV_MODE}=1")
    return f"it was started without {' and '.join(missing)}" if missing else ""


@dataclass(frozen=True, slots=True)
class SleepMode:
    """Each call is idempotent, and raises ActError if the server refuses or does not answer."""

    address: str

    async def sleep(self) -> None:
        """For a server without open requests: they would be aborted."""
        await self._call("POST", f"/sleep?level={OFFLOAD}")
        if not await self._is_sleeping():
            raise ActError(f"{self.address}/sleep: it answers 200 and does not sleep")

    async def wake(self) -> None:
        await self._call("POST", "/wake_up")
        if await self._is_sleeping():
            raise ActError(f"{self.address}/wake_up: it answers 200 and sleeps on")

    async def _is_sleeping(self) -> bool:
        try:
            body = parse_json(await self._call("GET", "/is_sleeping"))
        except ValueError as error:
            raise ActError(f"{self.address}/is_sleeping: no JSON") from error
        return isinstance(body, dict) and body.get("is_sleeping") is True

    async def _call(self, method: str, path: str) -> bytes:
        asked = f"{self.address}{path}"
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_WITHIN_S)) as session,
                session.request(method, f"http://{asked}", allow_redirects=False) as answer,
            ):
                body = await read_body(answer, _MOST_BYTES)
        except TimeoutError as error:
            raise ActError(f"{asked}: no answer within {_WITHIN_S:g} s") from error
        except (OSError, aiohttp.ClientError, ValueError) as error:
            raise ActError(f"{asked}: no answer: {error!r:.200}") from error
        if answer.status != 200:  # noqa: PLR2004
            raise ActError(f"{asked}: {answer.status} {body.decode(errors='replace')[:_SHOWN]}")
        return body
