"""Scale a workload: pods more, pods less while the others serve on, or none; without a lost request.

A pod that is taken away loses the labels by which its workload and Services select it, so that no client is
sent to it any more; it is deleted once its last request has ended. Until the workload has fewer replicas,
which is the next write, its controller may start another pod instead. That one ends first while it is not
ready; so each try of the write first takes out the pods that are ready beyond the count. A workload with
fewer pods than usual remembers how many it is to have.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from flettner.actuators.kubernetes.discovery import ServerEntry, find_pods
from flettner.actuators.kubernetes.labels import EPOCH, REPLICAS, draining_labels
from flettner.actuators.kubernetes.pods import Pod
from flettner.actuators.kubernetes.statefulset import count_turns
from flettner.actuators.kubernetes.workload import Workload
from flettner.actuators.vllm.fault import Fault
from flettner.actuators.vllm.probe import OpenAiProbe
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.ports import Site
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient, Reader, patiently
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import MissingError
from flettner.primitives.waiting import poll_until

log = structlog.get_logger(__name__)

_DNS_S = 40.0
"""Until every client of a Service's name has its new addresses: CoreDNS caches them for 30 s at most (its
Kubernetes default), Envoy asks again every 5 s."""

_DRAIN_S = 600.0  # for the last requests of a pod
_POLL_S = 1.0
_GONE_POLL_S = 0.5
_GONE_WITHIN_S = 120.0
"""Beyond the grace period of the pods: the kubelet frees the GPUs only when the last process has ended."""

SCALED_BY_FLETTNER = Fault("was scaled to 0 by flettner", external=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaler:
    """Every call is idempotent and raises ActError."""

    client: KubernetesClient
    site: Site

    async def scale(self, workload: Workload, replicas: int) -> Workload:
        """Set the replicas of the workload; return it."""

        async def to_wanted(document: Json) -> Json | None:
            return self._rescale(Workload.parse(document), replicas)

        return Workload.parse(await self.client.update(workload.resource, workload.name, to_wanted))

    async def claim(self, workload: Workload, replicas: int) -> None:
        """Write this daemon's epoch, and scale a workload with fewer replicas up."""

        async def to_wanted(document: Json) -> Json | None:
            current = Workload.parse(document)
            if current.replicas >= replicas and (not current.ours or current.epoch == self.site.epoch):
                return None
            return self._change(current, max(current.replicas, replicas))

        await self.client.update(workload.resource, workload.name, to_wanted)

    async def scale_down(self, workload: Workload) -> None:
        """Return when no pod of the workload runs any more; without error if it was removed."""

        async def to_none(document: Json) -> Json | None:
            current = Workload.parse(document)
            return self._change(current, 0) if current.replicas else None

        with suppress(MissingError):
            await self.client.update(workload.resource, workload.name, to_none)
        await wait_until_gone(self.client, workload)

    def _rescale(self, workload: Workload, replicas: int) -> Json | None:
        """What changes the replicas, and their usual count; None if nothing is to change."""
        if (workload.replicas, workload.annotations.get(REPLICAS)) == (replicas, _usual(workload, replicas)):
            return None
        return self._change(workload, replicas)

    def _change(self, workload: Workload, replicas: int) -> Json:
        annotations = {REPLICAS: _usual(workload, replicas)}
        metadata: Json = {"resourceVersion": workload.version, "annotations": annotations}
        if workload.ours:
            metadata["labels"] = {EPOCH: str(self.site.epoch)}
        return {"metadata": metadata, "spec": {"replicas": replicas}}

    async def shrink(self, entry: ServerEntry, keep: int) -> None:
        """Return when `keep` pods serve and the others have ended. Idempotent. Raises ActError."""
        leaving = await self._find_leaving(entry)
        surplus = entry.workload.replicas - keep - len(leaving)
        await self._isolate_last(entry, await self._find_active(entry), surplus)

        async def to_fewer(document: Json) -> Json | None:
            """A pod that gets ready meanwhile changes the status: the write is refused, and tried again."""
            ready = [pod for pod in await self._find_active(entry) if pod.ready]
            await self._isolate_last(entry, ready, len(ready) - keep)
            return self._rescale(Workload.parse(document), keep)

        await self.client.update(entry.workload.resource, entry.workload.name, to_fewer)
        await self.finish(entry)

    async def finish(self, entry: ServerEntry) -> None:
        """End the pods that an interrupted `shrink` has taken out of the server. Raises ActError."""
        leaving = await self._find_leaving(entry)
        if not leaving:
            return
        if any(pod.ready for pod in leaving):
            await wait_for_last_requests(
                lambda: self._find_leaving(entry), entry.workload.serve.port, entry.server
            )
        for pod in leaving:
            await self.client.delete(kubernetes.POD, pod.name)
        grace_s = float(entry.workload.template["spec"].get("terminationGracePeriodSeconds", 30))

        async def are_gone() -> bool:
            return not await patiently(lambda: self._find_leaving(entry))

        try:
            async with asyncio.timeout(grace_s + _GONE_WITHIN_S):
                await poll_until(are_gone, _POLL_S)
        except TimeoutError as error:
            names = ", ".join(pod.name for pod in leaving)
            raise ActError(f"{names} did not end: `kubectl get pods`", external=True) from error

    async def _find_active(self, entry: ServerEntry) -> list[Pod]:
        return [pod for pod in await find_pods(self.client, entry.workload) if pod.active]

    async def _isolate_last(self, entry: ServerEntry, pods: Sequence[Pod], count: int) -> None:
        for pod in last_first(pods)[: max(0, count)]:
            await self._isolate(entry, pod)

    async def _isolate(self, entry: ServerEntry, pod: Pod) -> None:
        services = await self.client.find(kubernetes.SERVICE)
        selectors = [
            entry.workload.selector,
            *(service["spec"].get("selector") or {} for service in services),
        ]
        labels = {**_without(pod.labels, selectors), **draining_labels(self.site, entry.server)}
        with suppress(MissingError):
            await self.client.patch(kubernetes.POD, pod.name, {"metadata": {"labels": labels}})

    async def _find_leaving(self, entry: ServerEntry) -> list[Pod]:
        container = str(entry.workload.container_document["name"])
        documents = await self.client.find(kubernetes.POD, draining_labels(self.site, entry.server))
        return [Pod.parse(document, container) for document in documents]


def _usual(workload: Workload, replicas: int) -> str | None:
    """Return the usual count, for a workload with fewer `replicas` to remember; else None."""
    return str(workload.usual_replicas) if replicas < workload.usual_replicas else None


def fault_of_none(annotations: Mapping[str, str]) -> Fault:
    """Who scaled a workload down to no pods: flettner leaves an annotation with it."""
    if REPLICAS in annotations:
        return SCALED_BY_FLETTNER
    return Fault("was scaled to 0 by a third party", external=True)


async def wait_until_gone(client: KubernetesClient, workload: Workload) -> None:
    """Return when no pod of the workload runs any more. Raises ActError.

    Evicted pods are over, and a Deployment that is scaled to 0 does not delete them.
    """
    grace_s = float(workload.template["spec"].get("terminationGracePeriodSeconds", 30))
    limit_s = grace_s * count_turns(workload) + _GONE_WITHIN_S

    async def all_over(reader: Reader) -> bool:
        return all(pod.over for pod in await patiently(lambda: find_pods(reader, workload)))

    async def are_gone() -> bool:
        return await all_over(client.cached) and await all_over(client)

    try:
        async with asyncio.timeout(limit_s):
            await poll_until(are_gone, _GONE_POLL_S)
    except TimeoutError as error:
        why = f"pods of {workload.name} still exist {limit_s:g} s after they were to end: `kubectl get pods`"
        raise ActError(why, external=True) from error


async def wait_for_last_requests(
    find: Callable[[], Awaitable[Sequence[Pod]]], port: int, server: str
) -> None:
    """Wait until no client has the addresses of these pods and their last request has ended."""
    await asyncio.sleep(_DNS_S)
    counts: Sequence[float | None] = ()

    async def have_ended() -> bool:
        nonlocal counts
        pods = [pod for pod in await patiently(find) if pod.active and pod.ip]
        counts = await asyncio.gather(*(OpenAiProbe(address=pod.address(port)).busy() for pod in pods))
        return not any(counts)

    if not await poll_until(have_ended, _POLL_S, _DRAIN_S):
        log.warning("kubernetes.requests_cut", server=server, open=sum(count or 0 for count in counts))


def last_first(pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods in the order in which they may end: a StatefulSet ends its last ordinal."""
    return sorted(pods, key=lambda pod: (pod.ready, -pod.ordinal, -pod.created.timestamp()))


def _without(labels: Mapping[str, str], selectors: Sequence[Mapping[str, str]]) -> dict[str, None]:
    """Return the labels by which any of these selects a pod, as a patch removes them."""
    used = (selector for selector in selectors if selector and selector.items() <= labels.items())
    return {key: None for selector in used for key in selector}
