"""Query a vLLM server over HTTP: health, load, model; warm-up and golden prompts."""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
import structlog

from flettner.actuators.vllm import answers as golden_answers
from flettner.actuators.vllm.status_line import get_status
from flettner.actuators.vllm.warm_up import Log, WarmUpRequests, no_log
from flettner.agent.domain.answers import GoldenAnswer
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Adapter
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.primitives.bounded import parse_json, read_body

logger = structlog.get_logger()

_IN_ENGINE = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)

_UNREADABLE = (aiohttp.ClientError, ValueError, LookupError, TypeError, AttributeError, OverflowError)


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

    async def version(self, timeout_s: float = 5.0) -> str:
        """Return the release of vLLM, such as 0.33.0+cu129; empty if it does not say."""
        try:
            async with (
                self._session(timeout_s) as session,
                session.get("/version", allow_redirects=False) as answer,
            ):
                return str(parse_json(await read_body(answer))["version"]) if answer.status == 200 else ""  # noqa: PLR2004
        except (*_UNREADABLE, TimeoutError):
            return ""

    async def warm_up(
        self,
        requests: int,
        deadline_s: float,
        prompts: Sequence[str] = (),
        prefixes: Sequence[SharedPrefix] = (),
        log: Log = no_log,
    ) -> None:
        """Complete prompts of several lengths, and those given, until `log` tells of no more compiling.

        Then ask each adapter once, and send the prefixes. Raises ActError when more than half fail, when an
        adapter does not answer, or when the deadline passes.
        """
        ends_s = asyncio.get_running_loop().time() + deadline_s
        async with self._session(None) as session:
            warming = WarmUpRequests(session=session, prompts=prompts, log=log)
            adapters = await self._warm(warming, requests, deadline_s)
            if prefixes:
                names = (warming.model, *adapters)
                await self._fill_cache(warming, prefixes, names, ends_s)

    async def _warm(self, warming: WarmUpRequests, requests: int, deadline_s: float) -> Sequence[str]:
        """Return the names of the adapters, which have answered."""
        try:
            async with asyncio.timeout(deadline_s):
                warming.model, warming.context = await self._model(warming.session)
                await warming.run(requests)
                warming.ended = True
                failed = [why for why in warming.done if why]
                if len(failed) * 2 > len(warming.done):
                    raise ActError(
                        f"{self.address}: {len(failed)} of {len(warming.done)} warm-up requests failed: "
                        f"{failed[0]}"
                    )
                names = [adapter.name for adapter in await self._served_adapters(warming.session)]
                silent = await warming.ask_adapters(names)
        except TimeoutError as error:
            done, compiled = len(warming.done), warming.compiled
            sofar = f"{done} of {requests} warm-up requests were done within {deadline_s:g} s"
            if warming.ended:
                sofar = f"its adapters did not all answer within the {deadline_s:g} s of the warm-up"
            elif done >= requests and compiled:
                sofar = f"after {done} warm-up requests in {deadline_s:g} s it still compiles: {compiled}"
            raise ActError(f"{self.address}: {sofar}") from error
        if silent:
            raise ActError(f"{self.address}: {silent}")
        return names

    async def _served_adapters(self, session: aiohttp.ClientSession) -> Sequence[Adapter]:
        try:
            return await _list_adapters(session)
        except _UNREADABLE as error:
            raise ActError(f"{self.address}: /v1/models names no adapters: {error!r:.200}") from error

    async def _fill_cache(
        self,
        warming: WarmUpRequests,
        prefixes: Sequence[SharedPrefix],
        names: Sequence[str],
        ends_s: float,
    ) -> None:
        """A cache that stays cold costs time, which the judge waits for: it is no reason to end a rollout."""
        why = "there was no time left for all of them"
        with suppress(TimeoutError):
            async with asyncio.timeout_at(ends_s):
                refused = await warming.send_prefixes(prefixes, names)
            why = f"{len(refused)} were refused: {refused[0]}" if refused else ""
        if why:
            logger.warning("warm_up.prefixes_missing", address=self.address, why=why)
        else:
            logger.info(
                "warm_up.prefixes_sent", address=self.address, prefixes=len(prefixes), names=len(names)
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

    async def adapters(self, timeout_s: float = 5.0) -> tuple[Adapter, ...] | None:
        """The LoRA adapters that /v1/models lists, by name; None if it does not answer."""
        try:
            async with self._session(timeout_s) as session:
                return await _list_adapters(session)
        except (*_UNREADABLE, TimeoutError):
            return None

    async def put_adapters(
        self, load: Sequence[Adapter], unload: Sequence[str] = (), timeout_s: float = 60.0
    ) -> tuple[str, ...]:
        """Load what it does not serve yet, and unload what it does; return its refusals, a sentence each.

        Raises ActError if it does not answer.
        """
        try:
            async with self._session(timeout_s) as session:
                serves = await _list_adapters(session)
                names = {adapter.name for adapter in serves}
                requests = [("unload", {"lora_name": name}) for name in unload if name in names] + [
                    ("load", _load_request(adapter, names)) for adapter in load if adapter not in serves
                ]
                answers = [await _change_adapter(session, verb, body) for verb, body in requests]
        except (*_UNREADABLE, TimeoutError) as error:
            raise ActError(f"{self.address}: the adapters cannot be changed: {error!r:.200}") from error
        return tuple(f"{self.address}: {why}" for why in answers if why)

    async def _model(self, session: aiohttp.ClientSession) -> tuple[str, int]:
        """Return the name of the model, and its context length in tokens."""
        try:
            async with session.get("/v1/models", allow_redirects=False) as answer:
                answer.raise_for_status()
                first = parse_json(await read_body(answer))["data"][0]
                return str(first["id"]), int(first.get("max_model_len") or 2048)
        except _UNREADABLE as error:
            raise ActError(f"{self.address}: /v1/models names no model: {error!r:.200}") from error

    @asynccontextmanager
    async def _session(self, timeout_s: float | None) -> AsyncIterator[aiohttp.ClientSession]:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=5.0)
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        async with aiohttp.ClientSession(
            f"http://{self.address}", timeout=timeout, headers=headers
        ) as session:
            yield session


async def list_adapters(probes: Iterable[OpenAiProbe]) -> tuple[Adapter, ...] | None:
    """The adapters of any of these servers; None if one of them does not answer."""
    lists = await asyncio.gather(*(probe.adapters() for probe in probes))
    if None in lists:
        return None
    adapters = {adapter for listed in lists for adapter in listed or ()}
    return tuple(sorted(adapters, key=lambda adapter: (adapter.name, adapter.path)))


async def _list_adapters(session: aiohttp.ClientSession) -> tuple[Adapter, ...]:
    """A model with a parent is an adapter, and its root the path of it."""
    async with session.get("/v1/models", allow_redirects=False) as answer:
        answer.raise_for_status()
        models = parse_json(await read_body(answer))["data"]
    adapters = (Adapter(name=str(m["id"]), path=str(m["root"])) for m in models if m.get("parent"))
    return tuple(sorted(adapters, key=lambda adapter: adapter.name))


def _load_request(adapter: Adapter, names: Collection[str]) -> dict[str, object]:
    """Replace an adapter of this name in place; older releases do not know that field."""
    body: dict[str, object] = {"lora_name": adapter.name, "lora_path": adapter.path}
    return {**body, "load_inplace": True} if adapter.name in names else body


async def _change_adapter(session: aiohttp.ClientSession, verb: str, body: Mapping[str, object]) -> str:
    """Load or unload an adapter. Return why not; empty if it did."""
    async with session.post(f"/v1/{verb}_lora_adapter", json=body, allow_redirects=False) as answer:
        text = (await read_body(answer)).decode("utf-8", "replace")
        if answer.status == 200:  # noqa: PLR2004
            return ""
        why = text[:200]
        if answer.status == 404 and '"error"' not in text:  # noqa: PLR2004 - no answer of this route
            why = "it needs VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment"
        return f"it does not {verb} the adapter {body['lora_name']}: status {answer.status}, {why}"
