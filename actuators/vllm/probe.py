"""Query a vLLM server over HTTP: health, load, model; warm-up and golden prompts."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from flettner.actuators.vllm import answers as golden_answers
from flettner.actuators.vllm.status_line import get_status
from flettner.actuators.vllm.warm_up import Log, WarmUpRequests, no_log
from flettner.agent.domain.answers import GoldenAnswer
from flettner.agent.domain.errors import ActError
from flettner.primitives.bounded import parse_json, read_body

_IN_ENGINE = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthAnswer:
    """The answer of /health. `why` it is not healthy, empty if it is; `refused`: no process listens."""

    why: str = ""
    status: int | None = None  # None: no answer
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiProbe:
    """`address`: "127.0.0.1:8000". `api_key`: the key for `/v1`; empty if it needs none."""

    address: str
    api_key: str = field(default="", repr=False)

    async def health(self, timeout_s: float = 5.0) -> HealthAnswer:
        """Ask on a new connection: an old one would not show whether the server still accepts connections."""
        try:
            async with asyncio.timeout(timeout_s):
                status = await get_status(self.address, "/health")
        except TimeoutError:
            return HealthAnswer(why=f"/health does not answer within {timeout_s:g} s")
        except (OSError, ValueError) as error:
            refused = isinstance(error, ConnectionRefusedError)
            return HealthAnswer(why=f"/health is not reachable: {error}", refused=refused)
        return HealthAnswer(why="" if status == 200 else f"/health answers {status}", status=status)  # noqa: PLR2004

    async def busy(self, timeout_s: float = 5.0) -> int | None:
        """Return the requests running and waiting, over all its engines. None: no answer, or no counts."""
        try:
            async with (
                self._session(timeout_s) as session,
                session.get("/metrics", allow_redirects=False) as answer,
            ):
                if answer.status != 200:  # noqa: PLR2004
                    return None
                counts = _IN_ENGINE.findall((await read_body(answer)).decode("utf-8", "replace"))
                return round(sum(map(float, counts))) if counts else None
        except (TimeoutError, aiohttp.ClientError, ValueError, OverflowError):
            return None

    async def warm_up(
        self, requests: int, deadline_s: float, prompts: Sequence[str] = (), log: Log = no_log
    ) -> None:
        """Complete prompts of several lengths, and those given, until `log` tells of no more compiling.

        Raises ActError when more than half fail, or the deadline passes.
        """
        warming: WarmUpRequests | None = None
        try:
            async with asyncio.timeout(deadline_s), self._session(None) as session:
                model, context = await self._model(session)
                warming = WarmUpRequests(
                    session=session, model=model, context=context, prompts=prompts, log=log
                )
                await warming.run(requests)
        except TimeoutError as error:
            done, compiled = (len(warming.done), warming.compiled) if warming else (0, "")
            sofar = f"{done} of {requests} warm-up requests were done within {deadline_s:g} s"
            if done >= requests and compiled:
                sofar = f"after {done} warm-up requests in {deadline_s:g} s it still compiles: {compiled}"
            raise ActError(f"{self.address}: {sofar}") from error
        failed = [why for why in warming.done if why]
        if len(failed) * 2 > len(warming.done):
            raise ActError(
                f"{self.address}: {len(failed)} of {len(warming.done)} warm-up requests failed: {failed[0]}"
            )

    async def answers(self, prompts: Sequence[str], deadline_s: float) -> tuple[GoldenAnswer, ...]:
        """Ask golden prompts. Raises ActError if it names no model, or the deadline passes."""
        try:
            async with asyncio.timeout(deadline_s), self._session(None) as session:
                model, _ = await self._model(session)
                return await golden_answers.answers(session, model, prompts)
        except TimeoutError as error:
            late = f"{self.address}: {len(prompts)} golden prompts were not answered within {deadline_s:g} s"
            raise ActError(late) from error

    async def _model(self, session: aiohttp.ClientSession) -> tuple[str, int]:
        """Return the name of the model, and its context length in tokens."""
        try:
            async with session.get("/v1/models", allow_redirects=False) as answer:
                answer.raise_for_status()
                first = parse_json(await read_body(answer))["data"][0]
                return str(first["id"]), int(first.get("max_model_len") or 2048)
        except (
            aiohttp.ClientError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            OverflowError,
        ) as error:
            raise ActError(f"{self.address}: /v1/models names no model: {error!r:.200}") from error

    @asynccontextmanager
    async def _session(self, timeout_s: float | None) -> AsyncIterator[aiohttp.ClientSession]:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=5.0)
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        async with aiohttp.ClientSession(
            f"http://{self.address}", timeout=timeout, headers=headers
        ) as session:
            yield session
