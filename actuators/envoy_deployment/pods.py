"""Asks the Envoy pods what they have in force and how many requests are open."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from flettner.agent.domain.errors import ActError
from flettner.clients.envoy_records.pods import PORT, STATUS_PATH
from flettner.clients.kubernetes.deployment_pods import DeploymentPods, FoundPod
from flettner.primitives.address import Address
from flettner.primitives.bounded import parse_json, read_body
from flettner.primitives.waiting import poll_until

_ANSWER_S = 2.0
_POLL_S = 0.1


class RouteRefusedError(ActError):
    """An Envoy does not take the route."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAnswer:
    """`write`: the published route in force. `why`: the reason why another one, `refused`, is not."""

    pod: FoundPod
    write: str = ""
    refused: str = ""
    why: str = ""
    listening: bool = False
    open: int | None = None
    settled: bool = False


@dataclass(frozen=True, slots=True)
class EnvoyPods:
    pods: DeploymentPods
    target: str

    async def ask(self, server: str = "", *, stale: bool = False) -> Sequence[PodAnswer]:
        """Ask each pod; `server`: whose open requests are counted. Raises ActError."""
        pods = await self.pods.find(stale=stale)
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            return await asyncio.gather(*(self._ask(session, pod, server) for pod in pods))

    async def _ask(self, session: aiohttp.ClientSession, pod: FoundPod, server: str) -> PodAnswer:
        query = {"target": self.target, "server": server}
        try:
            async with session.get(f"http://{Address(pod.ip, PORT)}{STATUS_PATH}", params=query) as answer:
                if answer.status != HTTPStatus.OK:
                    raise ValueError(f"status {answer.status}")  # noqa: TRY301 - as any other bad answer
                content = parse_json(await read_body(answer))
                return _parse(pod, content if isinstance(content, dict) else {})
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return PodAnswer(pod=pod, why=f"no answer on port {PORT}")

    async def confirm(self, write: str, within_s: float) -> None:
        """Wait until every ready pod, and at least one, has this write in force.

        Raises RefusedError, and ActError for a pod that does not confirm in time.
        """
        answers: Sequence[PodAnswer] = ()
        missing: Sequence[PodAnswer] = ()

        async def is_in_force() -> bool:
            nonlocal answers, missing
            answers = await self.ask()
            ready = [answer for answer in answers if answer.pod.ready]
            for answer in ready or answers:
                if answer.refused == write and answer.why:
                    raise RouteRefusedError(
                        f"the Envoy of the pod {answer.pod.name} refused the route: {answer.why}"
                    )
            missing = [answer for answer in ready if answer.write != write]
            return not missing and any(answer.write == write for answer in answers)

        if not await poll_until(is_in_force, _POLL_S, within_s):
            raise ActError(self._explain(answers, missing, within_s), external=True)

    def _explain(self, answers: Sequence[PodAnswer], missing: Sequence[PodAnswer], within_s: float) -> str:
        if not answers:
            return f"the Deployment {self.pods.deployment} has no running pod: no Envoy can have the route"
        names = ", ".join(
            f"{answer.pod.name} ({answer.why or 'no reason known'})" for answer in missing or answers
        )
        return f"not in force after {within_s:g} s in {names}"


def _parse(pod: FoundPod, content: Mapping[str, Any]) -> PodAnswer:
    opened = content.get("open")
    return PodAnswer(
        pod=pod,
        write=str(content.get("write", "")),
        refused=str(content.get("refused", "")),
        why=str(content.get("why", "")),
        listening=content.get("listening") is True,
        open=opened if isinstance(opened, int) else None,
        settled=content.get("settled") is True,
    )
