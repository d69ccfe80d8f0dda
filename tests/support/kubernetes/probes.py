"""Startup, readiness and liveness probes of a container; httpGet and tcpSocket."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

from tests.support.kubernetes.api import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Times in seconds, with Kubernetes' defaults."""

    spec: Json
    address: str
    port: int

    async def results(self) -> AsyncIterator[tuple[bool, str]]:
        """A result for each probe from the threshold on: whether it succeeded, and why not."""
        spec, streak, last = self.spec, 0, None
        await asyncio.sleep(spec.get("initialDelaySeconds", 0))
        while True:
            why = await self._failure()
            good = not why
            streak, last = (streak + 1 if good is last else 1), good
            if streak >= (spec.get("successThreshold", 1) if good else spec.get("failureThreshold", 3)):
                yield good, why
            await asyncio.sleep(spec.get("periodSeconds", 10))

    async def _failure(self) -> str:
        """Empty for a success. A status from 200 to 399 is one, as for the kubelet."""
        timeout_s = self.spec.get("timeoutSeconds", 1)
        try:
            if "tcpSocket" in self.spec:
                async with asyncio.timeout(timeout_s):
                    _, writer = await asyncio.open_connection(self.address, self.port)
                    writer.close()
                return ""
            asked = self.spec["httpGet"]
            url = (
                f"{asked.get('scheme', 'HTTP').lower()}://{self.address}:{self.port}{asked.get('path', '/')}"
            )
            headers = {header["name"]: header["value"] for header in asked.get("httpHeaders", ())}
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
                session.get(url, headers=headers, ssl=False) as answer,
            ):
                if 200 <= answer.status < 400:
                    return ""
                return f"HTTP probe failed with statuscode: {answer.status}"
        except TimeoutError:
            return "context deadline exceeded"
        except ConnectionRefusedError:
            return f"dial tcp {self.address}:{self.port}: connect: connection refused"
        except (OSError, aiohttp.ClientError) as error:
            return str(error)


def probe_of(container: Json, kind: str, address: str) -> Probe | None:
    """`kind`: "startupProbe", "readinessProbe" or "livenessProbe"."""
    spec = container.get(kind)
    if spec is None:
        return None
    way = spec.get("httpGet") or spec.get("tcpSocket")
    assert way, f"{kind}: the stand-in for the kubelet knows httpGet and tcpSocket only"
    named = {port.get("name"): port["containerPort"] for port in container.get("ports", ())}
    return Probe(spec=spec, address=address, port=int(named.get(way["port"], way["port"])))
