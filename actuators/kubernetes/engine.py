"""The bound Kubernetes engine: launches, watches and ends the servers of one target."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal

import structlog
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    wait_fixed,
)

from flettner.actuators.kubernetes.autoscaler import find_conflict
from flettner.actuators.kubernetes.detach import Detachment
from flettner.actuators.kubernetes.discovery import (
    ServerEntry,
    check_fence,
    find_pods,
    find_servers,
    newest_epoch,
    read_server,
)
from flettner.actuators.kubernetes.handover import Handover
from flettner.actuators.kubernetes.labels import object_name
from flettner.actuators.kubernetes.late_creation import LateCreations
from flettner.actuators.kubernetes.options import KubernetesOptions
from flettner.actuators.kubernetes.pods import Pod, newest_first
from flettner.actuators.kubernetes.preflight import (
    choose_pod_strategy,
    describe_update,
    find_waiting_pod,
    obstacles,
    preflight,
    preflight_saving,
    start_key,
)
from flettner.actuators.kubernetes.retirement import Retirements
from flettner.actuators.kubernetes.scale import fault_of_none
from flettner.actuators.kubernetes.service import create_service, keep_service
from flettner.actuators.kubernetes.start import NoNodeError, Starter, read_log, remove_server
from flettner.actuators.kubernetes.upgrade import ResolvedUpgrade, resolve_upgrade
from flettner.actuators.kubernetes.watch import Watch
from flettner.actuators.kubernetes.workload import OPTIONS, Workload, WorkloadName
from flettner.actuators.vllm.engine import VllmEngine
from flettner.actuators.vllm.fault import Fault, Report, make_report
from flettner.actuators.vllm.probe import OpenAiProbe, list_adapters
from flettner.actuators.vllm.start_times import StartTimes
from flettner.agent.domain.answers import GoldenAnswer
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.events import ServerLost
from flettner.agent.domain.model import Adapter, PreflightResult, Server, Strategy
from flettner.agent.domain.ports import Now, Site
from flettner.agent.domain.upgrade import AS_IT_IS, IMAGE
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.agent.retrying import retry
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import Reader
from flettner.primitives.waiting import poll_until
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.values import Setting

logger = structlog.get_logger(__name__)

_RETRY_S = 2.0  # while the API server is away, or a pod does not answer
_START_S = 1800.0  # deadline of the operator's workload after a promotion, if no start was measured
_WARM_UP_REQUESTS = 8
_WARM_UP_S = 600.0


class KubernetesEngine(VllmEngine):
    """The workloads of one target. A launched one is like the one it replaces, except for what changes."""

    def __init__(self, options: KubernetesOptions, site: Site) -> None:
        super().__init__(site)
        self._options = options
        self._client = options.client()
        self._times = StartTimes.at(site.state_dir)
        self._prefixes: Sequence[SharedPrefix] = ()  # for the pods of a workload that begins anew
        self._starter = Starter(client=self._client, site=site, adopted=options.adopted)
        self._retirements = Retirements()
        self._late = LateCreations(self._remove_new_server)
        self._no_node = ""  # why no node took the last pod that was to start; empty: one did

    async def problems(self) -> Sequence[str]:
        try:
            return await self._find_problems()
        except ActError as error:
            return [error.why]

    async def _find_problems(self) -> Sequence[str]:
        servers = await self._find_cached()
        wrong: list[str] = []
        named = {server.workload.name: server.workload for server in servers.values()}
        for name in self._options.adopted:
            option, workload = OPTIONS[name.resource], named.get(name.name)
            if workload is None:
                wrong.append(f"{option}: {await self._explain_missing(name)}")
            else:
                wrong += [f"{option}: {name.name}: {problem}" for problem in obstacles(workload)]
        return wrong

    async def _explain_missing(self, wanted: WorkloadName) -> str:
        for other in OPTIONS.keys() - {wanted.resource}:
            if document := await self._client.get(other, wanted.name):
                workload = Workload.parse(document)
                why = workload.problem or f"name it in {OPTIONS[other]}"
                return f"{wanted.name}: there is a {other.__name__} of this name: {why}"
        names = [document["metadata"]["name"] for document in await self._client.cached.find(wanted.resource)]
        namespace, existing = await self._client.own_namespace(), ", ".join(sorted(names)) or "none"
        return f"{wanted.name}: there is none in the namespace {namespace} (there are: {existing})"

    async def observe(self) -> Sequence[Server]:
        """Return our servers first. An adopted workload gets a headless Service, unless in advise mode."""
        servers = await self._find_cached()
        running = [server for server in servers.values() if server.active]
        if self._site.acts and not all(server.service for server in running):
            check_fence(self._site, await self._find())
            running = [
                server if server.service else await create_service(self._client, self._site, server)
                for server in running
            ]
        return [
            await read_server(self._client.cached, server)
            for server in sorted(
                running, key=lambda server: (not server.ours, server.server if server.ours else "")
            )
        ]

    async def newest_epoch(self) -> int:
        return newest_epoch(await self._find())

    async def preflight(
        self,
        servers: Sequence[Server],
        setting: Setting,
        wanted: Strategy | Literal["auto"],
        start: Setting = AS_IT_IS,
        gpu: str = "",
    ) -> PreflightResult:
        by_name = await self._find_cached()
        missing = [server.name for server in servers if server.name not in by_name]
        if missing or not servers:
            raise ActError(f"there is no workload of {', '.join(missing) or 'this target'} to ask")
        blues = [by_name[server.name] for server in servers]
        if wanted == "save":
            return await preflight_saving(self._client, blues, self._times)
        no_node = self._no_node or await find_waiting_pod(self._client.cached, blues[-1].workload)
        choice = choose_pod_strategy(wanted, sum(server.replicas for server in servers), no_node)
        try:
            upgrade = await self._resolve(servers[-1], blues[-1].workload, start, setting, gpu)
        except (ActError, FlagError) as error:
            return PreflightResult(problem=str(error), lasting=isinstance(error, FlagError))
        wanted_server = replace(servers[-1], name="preflight", setting=upgrade.setting, start=upgrade.start)
        result = await preflight(self._client, self._site, blues, wanted_server, choice, self._times)
        notes = (*upgrade.notes, *result.notes)
        return replace(result, resolved=upgrade.resolved, notes=notes, versions=upgrade.versions)

    async def _resolve(
        self, server: Server, workload: Workload, start: Setting, setting: Setting, gpu: str
    ) -> ResolvedUpgrade:
        version = ""
        if IMAGE in start:
            with suppress(ActError):
                version = await (await self._probes(server, self._client.cached))[0].version()
        return await resolve_upgrade(self._client.cached, workload, start, setting, version, gpu)

    async def launch(self, server: Server, deadline_s: float) -> Server:
        """Launch a server; a second launch of it finds the workload that the first has started."""
        async with self._lock(server.name):
            self._late.forget(server.name)
            servers = await self._find_fenced()
            began = asyncio.get_running_loop().time()
            was_active = server.name in servers and servers[server.name].active
            try:
                launched = await self._starter.launch(server, servers, deadline_s)
            except BaseException as error:
                if isinstance(error, NoNodeError):
                    self._no_node = error.why
                if server.name not in servers:
                    self._late.expect(server.name)
                raise
            self._no_node = ""
            if not was_active and (entry := (await self._find()).get(server.name)):  # else removed since
                took_s = asyncio.get_running_loop().time() - began
                self._times.record(start_key(entry.workload), took_s, None)
            return launched

    async def _remove_new_server(self, name: str) -> None:
        async with self._lock(name):
            entry = (await self._find_fenced()).get(name)
            if entry is None:
                await self._client.delete(kubernetes.SERVICE, object_name(self._site, name))
            elif entry.workload.ours:
                await remove_server(self._client, self._site, entry)

    async def warm_up(
        self,
        server: Server,
        requests: int,
        deadline_s: float,
        prompts: Sequence[str] = (),
        prefixes: Sequence[SharedPrefix] = (),
    ) -> None:
        """Warm up each pod: a name in DNS would reach one of them."""
        self._prefixes = prefixes
        for probe in await self._probes(server, self._client):
            await probe.warm_up(requests, deadline_s, prompts, prefixes, lambda: self._recent_log(server))

    async def answers(
        self, server: Server, prompts: Sequence[str], deadline_s: float
    ) -> tuple[GoldenAnswer, ...]:
        first, *_ = await self._probes(server, self._client)
        return await first.answers(prompts, deadline_s)

    async def check_address(self, server: Server) -> None:
        """A pod's address is its own."""

    async def busy(self, server: Server) -> int | None:
        """Requests of all its pods; None if one of them does not answer."""
        try:
            entry, pods = await self._pods_of(server, self._client.cached)
        except ActError:
            return None
        counts = [await OpenAiProbe(address=address).busy() for address in _addresses(entry, pods)]
        return None if None in counts else sum(count or 0 for count in counts)

    async def adapters(self, server: Server) -> tuple[Adapter, ...] | None:
        """Those of any of its pods; None if one of them does not answer."""
        try:
            probes = await self._probes(server, self._client.cached)
        except ActError:
            return None
        return await list_adapters(probes)

    async def put_adapters(
        self, server: Server, load: Sequence[Adapter], unload: Sequence[str] = ()
    ) -> Sequence[str]:
        """In each pod: a name in DNS would reach one of them."""
        probes = await self._probes(server, self._client)
        return [why for probe in probes for why in await probe.put_adapters(load, unload)]

    async def log(self, server: Server) -> tuple[str, ...]:
        entry = (await self._find_cached()).get(server.name)
        pods = newest_first(await find_pods(self._client.cached, entry.workload)) if entry else []
        return (await read_log(self._client, entry.workload, pods[0]))[-40:] if entry and pods else ()

    async def stop(self, server: Server, keep: int = 0) -> None:
        async with self._lock(server.name):
            entry = (await self._find_fenced()).get(server.name)
            if entry is None:
                raise ActError(
                    f"{server.name} has no workload any more: it cannot be stopped and started again"
                )
            if conflict := await find_conflict(self._client, [entry.workload], keep):
                raise ActError(conflict, external=True)
            if keep and not entry.ours and (update := describe_update(entry.workload)):
                raise ActError(update, external=True)
            if keep:
                await self._starter.scaler.shrink(entry, keep)
                return
            with self._times.timed(start_key(entry.workload) if entry.active else "", "stop"):
                await self._starter.scaler.scale_down(entry.workload)
                await self._starter.scaler.finish(entry)

    async def retire(self, server: Server) -> str | None:
        """End a server for good. If people own its workload, the server that replaces it moves there.

        If that server exits meanwhile, it is no loss to act on unless the handover fails.
        """
        async with self._retirements.turn(), self._lock(server.name):
            entry, home, successor = self._retirements.choose(server.name, await self._find_fenced())
            moved = ""
            if entry is not None:
                if home is not entry or successor is None:
                    await self._starter.scaler.scale_down(entry.workload)
                await self._starter.scaler.finish(entry)
                if home and successor and await self._hand_over(home, successor, server.adapters):
                    moved = successor.server
                if entry.workload.ours:
                    await remove_server(self._client, self._site, entry)
            await self._client.delete(kubernetes.SERVICE, object_name(self._site, server.name))
            return moved

    async def give_back(self) -> Sequence[str]:
        """Let the operator's workloads serve alone, with their flags as they are. Raises ActError."""
        return await self._detachment().give_back()

    async def clear(self) -> Sequence[str]:
        """Remove what else flettner made for the target. Raises ActError."""
        return await self._detachment().clear()

    def _detachment(self) -> Detachment:
        return Detachment(starter=self._starter, start_s=_START_S)

    async def watch(self, server: Server, emit: Callable[[ServerLost], None], now: Now) -> None:
        report = make_report(server.name, emit, now)
        self._retirements.gone.discard(server.name)
        keeping = asyncio.create_task(self._keep_service(server))
        try:
            loss, log = await self._watch_until_gone(server, report)
        finally:
            keeping.cancel()
        if loss is not None:
            self._retirements.gone.add(server.name)
            report(loss, log, gone=True)

    async def _watch_until_gone(self, server: Server, report: Report) -> tuple[Fault | None, tuple[str, ...]]:
        """Return how it ended, and its last log lines; None: its owner has changed it."""
        loss: Fault | None = Fault("has no workload any more", external=True)
        log, watched = tuple[str, ...](), ""
        while (entry := await self._find_patiently(server)) is not None and entry.active:
            if entry.workload.name == watched:
                break
            watched = entry.workload.name  # another one after a promotion: the operator's
            watch = Watch(
                client=self._client,
                server=server.name,
                workload=entry.workload,
                every_s=self._options.health_every_s,
                timeout_s=self._options.health_timeout_s,
                misses=self._options.lost_after,
                setting=server.setting,
                start=server.start,
                replicas=server.replicas,
                address="" if self._site.acts else server.address,
                report=report,
            )
            loss, log = await watch.until_gone()
            if loss is None:
                return None, ()
            if await self._has_moved(server, watched):
                continue
            if await self._retirements.moves(server.name) or not await self._has_settled(server):
                report(loss, log, gone=False)  # the operator's workload starts in its place
                await self._retirements.wait()
                await poll_until(partial(self._has_settled, server), _RETRY_S, _START_S)
        if entry is not None and not watched:
            loss = fault_of_none(entry.workload.annotations)
        return loss, log

    async def _has_settled(self, server: Server) -> bool:
        """Whether no handover moves it, also none that a restart of the daemon interrupted."""
        entry = await self._find_patiently(server)
        return entry is None or not entry.is_moving

    async def _has_moved(self, server: Server, workload: str) -> bool:
        """Whether it runs by another workload now: a handover ends green's Deployment last."""
        entry = await self._find_patiently(server)
        return entry is not None and entry.active and entry.workload.name != workload

    async def _keep_service(self, server: Server) -> None:
        if self._site.acts:
            name = object_name(self._site, server.name)
            await keep_service(self._client, name, lambda: self._restore_service(server))

    async def _restore_service(self, server: Server) -> None:
        async with self._lock(server.name):
            entry = (await self._find_fenced()).get(server.name)
            if entry and entry.active and not entry.service:
                logger.warning("kubernetes.service_restored", server=server.name)
                await create_service(self._client, self._site, entry)

    async def _api_key(self, server: Server) -> str:
        entry = (await self._find_cached()).get(server.name)
        return entry.workload.serve.api_key if entry else ""

    async def _recent_log(self, server: Server, lines: int = 40) -> Sequence[str]:
        with suppress(ActError):
            entry = (await self._find_cached()).get(server.name)
            pods = newest_first(await find_pods(self._client.cached, entry.workload)) if entry else []
            if pods:
                return (await self._client.log(pods[0].name, pods[0].container, lines)).splitlines()
        return ()

    async def _find(self) -> Mapping[str, ServerEntry]:
        return await find_servers(self._client, self._site, self._options.adopted)

    async def _find_cached(self) -> Mapping[str, ServerEntry]:
        return await find_servers(self._client.cached, self._site, self._options.adopted)

    async def _find_fenced(self) -> Mapping[str, ServerEntry]:
        servers = await self._find()
        check_fence(self._site, servers)
        return servers

    async def _find_patiently(self, server: Server) -> ServerEntry | None:
        """Return the server; before it is said to be gone or idle, the objects are read."""

        async def find() -> ServerEntry | None:
            cached = (await self._find_cached()).get(server.name)
            return cached if cached and cached.active else (await self._find()).get(server.name)

        finding = AsyncRetrying(retry=retry_if_exception_type(ActError), wait=wait_fixed(_RETRY_S))
        return await retry(finding, find)

    async def _pods_of(self, server: Server, reader: Reader) -> tuple[ServerEntry, list[Pod]]:
        """Return the server with its running pods. Raises ActError if there is none."""
        entry = (await find_servers(reader, self._site, self._options.adopted)).get(server.name)
        pods = await _find_running(reader, entry) if entry else []
        if entry is None or not pods:
            raise ActError(f"{server.name} has no running pod")
        return entry, pods

    async def _probes(self, server: Server, reader: Reader) -> list[OpenAiProbe]:
        """One for each running pod. Raises ActError if there is none."""
        return _probes_of(*await self._pods_of(server, reader))

    async def _adapters_of(self, entry: ServerEntry, known: Sequence[Adapter]) -> Sequence[Adapter]:
        """What the pods serve; the known ones where a pod hangs, or has been started again without any."""
        return await list_adapters(_probes_of(entry, await _find_running(self._client, entry))) or known

    async def _hand_over(self, old: ServerEntry, new: ServerEntry, adapters: Sequence[Adapter]) -> bool:
        """Return whether the new server has moved. `adapters`: what it serves, as far as is known."""
        key = start_key(old.workload)

        async def warm_up(address: str) -> None:
            probe = OpenAiProbe(address=address, api_key=new.workload.serve.api_key)
            if refused := await probe.put_adapters(await self._adapters_of(new, adapters)):
                raise ActError("; ".join(refused))
            await probe.warm_up(_WARM_UP_REQUESTS, _WARM_UP_S, prefixes=self._prefixes)

        handover = Handover(
            starter=self._starter,
            old=old,
            new=new,
            start_s=self._times.deadline(key, _START_S),
            warm_up=warm_up,
        )
        return await handover.perform()


async def _find_running(reader: Reader, entry: ServerEntry) -> list[Pod]:
    return [pod for pod in await find_pods(reader, entry.workload) if pod.ip and pod.active]


def _probes_of(entry: ServerEntry, pods: Sequence[Pod]) -> list[OpenAiProbe]:
    key = entry.workload.serve.api_key
    return [OpenAiProbe(address=address, api_key=key) for address in _addresses(entry, pods)]


def _addresses(entry: ServerEntry, pods: Sequence[Pod]) -> list[str]:
    return [pod.address(entry.workload.serve.port) for pod in pods]
