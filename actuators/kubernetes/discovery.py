"""Find the servers of one target: the workloads that the config names, and flettner's own Deployments.

A server is a workload together with a headless Service of flettner's, whose name resolves to its ready pods.
After a promotion the Service of the new server selects the pods of the operator's workload again.
"""

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TypeVar

from flettner.actuators.kubernetes.labels import DEPLOYMENT, LIKE, SERVES_AS, epoch_of, server_of, site_labels
from flettner.actuators.kubernetes.pods import Pod
from flettner.actuators.kubernetes.workload import OPTIONS, Workload, WorkloadName, is_complete
from flettner.actuators.vllm.engine import refuse_older_daemon
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.agent.plugins.installation import FoundServers
from flettner.clients.kubernetes import client as kubernetes
from flettner.clients.kubernetes.client import KubernetesClient, Reader, is_configured
from flettner.clients.kubernetes.documents import Json
from flettner.clients.kubernetes.errors import ForbiddenError
from flettner.vllm_facts.sizing.effective_flags import chooses_cpus
from flettner.vllm_facts.values import Setting

_Listed = TypeVar("_Listed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEntry:
    """A server and its workload. `service`: the name of its Service; empty: it has none yet."""

    server: str
    workload: Workload
    like: str = ""
    epoch: int = 0
    service: str = ""
    namespace: str = ""
    is_moving: bool = False  # it has no pods left, and those of the workload that people own take its place

    @property
    def ours(self) -> bool:
        """Whether flettner created its Deployment; not after a promotion."""
        return self.workload.ours

    @property
    def active(self) -> bool:
        """Whether it runs; not while its workload starts as the server that replaces it."""
        serves_as = self.workload.annotations.get(SERVES_AS, self.server)
        return self.is_moving or (self.workload.replicas > 0 and serves_as == self.server)

    @property
    def address(self) -> str:
        """The name in DNS and the port; empty without a Service."""
        port = self.workload.serve.port
        return f"{self.service}.{self.namespace}.svc:{port}" if self.service else ""

    def to_server(self, address: str = "", setting: Setting | None = None) -> Server:
        return Server(
            name=self.server,
            setting=self.workload.serve.setting if setting is None else setting,
            address=address or self.address,
            ours=self.ours,
            like=self.like,
            replicas=self.workload.replicas or self.workload.usual_replicas,
            start=self.workload.start,
            on_cpus=chooses_cpus(self.workload.variables),
        )


async def find_servers(reader: Reader, site: Site, adopted: Iterable[WorkloadName]) -> dict[str, ServerEntry]:
    """Return the servers by name, running or stopped. Raises ActError."""
    namespace = await reader.own_namespace()
    services = await reader.find(kubernetes.SERVICE, site_labels(site))
    documents = {
        document["metadata"]["name"]: document
        for document in await reader.find(kubernetes.DEPLOYMENT, site_labels(site))
    }
    for wanted in adopted:
        if document := await reader.get(wanted.resource, wanted.name):
            documents[wanted.name] = document
    workloads = {name: await read_workload(reader, document) for name, document in documents.items()}
    servers: dict[str, ServerEntry] = {}
    homes = {w.annotations.get(SERVES_AS) for w in workloads.values() if w.replicas and not w.ours}
    for service in services:
        entry = _of_service(service, workloads, namespace)
        if entry is not None:
            no_pods = entry.ours and not entry.workload.replicas
            servers[entry.server] = replace(entry, is_moving=no_pods and entry.server in homes)
    taken = {entry.workload.name for entry in servers.values()}
    for workload in workloads.values():
        name = _name_of(workload, workloads.values())
        if workload.name in taken or name in servers:  # green's own, after its server has moved
            continue
        servers[name] = ServerEntry(
            server=name,
            workload=workload,
            like=workload.like if workload.ours else "",
            epoch=workload.epoch if workload.ours else 0,
            namespace=namespace,
        )
    return servers


def find_home(
    entry: ServerEntry, successor: ServerEntry | None, servers: Mapping[str, ServerEntry]
) -> ServerEntry | None:
    """Return the server whose workload people own, and to which the successor of `entry` belongs.

    It is `entry` itself, or, if green has gone on to serve because that workload did not become available,
    the idle workload that `entry` was to become.
    """
    if not entry.workload.ours:
        return entry
    if successor is not None and not successor.workload.ours:  # it has moved already
        return successor
    names = {entry.server, successor.server if successor else ""}
    idle = (other for other in servers.values() if not other.workload.ours and not other.active)
    return next((other for other in idle if other.workload.annotations.get(SERVES_AS, "") in names), None)


def newest_epoch(servers: Mapping[str, ServerEntry]) -> int:
    """Return the newest epoch of the daemons that have written an object here."""
    return max([0, *(server.epoch for server in servers.values())])


def check_fence(site: Site, servers: Mapping[str, ServerEntry]) -> None:
    """Raises FencedError if a newer daemon has written an object here."""
    refuse_older_daemon(site, newest_epoch(servers))


async def find_pods(reader: Reader, workload: Workload) -> list[Pod]:
    """Return the pods of a workload, also those that end."""
    container = str(workload.container_document["name"])
    documents = await reader.find(kubernetes.POD, workload.selector)
    return [Pod.parse(document, container) for document in documents]


def _name_of(workload: Workload, others: Iterable[Workload]) -> str:
    """Return the name of the server that a workload without a Service of flettner's is.

    A promoted server keeps its name if a person removes its Service.
    """
    if workload.ours:
        return workload.server
    serves_as = workload.annotations.get(SERVES_AS, "")
    starts = any(other.server == serves_as for other in others)  # beside green's
    return workload.name if starts or not serves_as else serves_as


def _of_service(service: Json, workloads: Mapping[str, Workload], namespace: str) -> ServerEntry | None:
    metadata = service["metadata"]
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    workload = workloads.get(notes.get(DEPLOYMENT, ""))
    server = server_of(metadata)
    if workload is None or not server:
        return None
    return ServerEntry(
        server=server,
        workload=workload,
        like=notes.get(LIKE, workload.like),
        epoch=max(epoch_of(labels), workload.epoch),
        service=metadata["name"],
        namespace=namespace,
    )


async def read_workload(reader: Reader, document: Json) -> Workload:
    """Parse it, with the files that ConfigMaps mount: a `--config` file may be one."""
    workload = Workload.parse(document)
    if not workload.serve.error:
        return workload
    files = await _read_config_maps(reader, document["spec"]["template"]["spec"], workload.container)
    return Workload.parse(document, files.get) if files else workload


async def _read_config_maps(reader: Reader, pod: Json, container: int) -> dict[str, str]:
    """Return the files that ConfigMaps mount into a container, by their absolute paths in it."""
    maps = {
        volume["name"]: volume["configMap"] for volume in pod.get("volumes") or () if "configMap" in volume
    }
    files: dict[str, str] = {}
    for mount in pod["containers"][container].get("volumeMounts") or ():
        source = maps.get(mount["name"])
        if source is None:
            continue
        document = await reader.get(kubernetes.CONFIG_MAP, source["name"]) or {}
        data = document.get("data") or {}
        chosen = {item["key"]: item["path"] for item in source.get("items") or ()} or {
            key: key for key in data
        }
        for key, path in chosen.items():
            if key in data and mount.get("subPath", path) == path:
                whole = (
                    PurePosixPath(mount["mountPath"])
                    if "subPath" in mount
                    else PurePosixPath(mount["mountPath"], path)
                )
                files[str(whole)] = data[key]
    return files


async def find_unmanaged_servers() -> FoundServers:
    """Return the workloads of the namespace that run vLLM, each with its `[targets.engine]` options.

    None outside a pod where no kubeconfig exists. Raises ActError if the API server does not answer.
    """
    if not is_configured():
        return FoundServers()
    client, skipped = KubernetesClient(), dict[str, None]()

    async def list_if_allowed(listing: Awaitable[list[_Listed]]) -> list[_Listed]:
        try:
            return await listing
        except ForbiddenError as error:
            skipped[error.why] = None
            return []

    namespace = await client.own_namespace()
    documents = [
        document for resource in OPTIONS for document in await list_if_allowed(client.find(resource))
    ]
    servers = []
    for workload in map(Workload.parse, documents):
        if workload.problem and workload.names_vllm and not workload.ours:
            skipped[f"{workload.full_name}: {workload.problem}"] = None
        if not workload.replicas or workload.ours or workload.problem:
            continue
        pods = await list_if_allowed(find_pods(client, workload))
        address = join_addresses(pods, workload.serve.port).partition(", ")[0]
        server = Server(name=workload.name, setting=workload.serve.setting, address=address, ours=False)
        servers.append((server, {OPTIONS[workload.resource]: [workload.name], "namespace": namespace}))
    return FoundServers(servers=servers, skipped=tuple(skipped))


async def read_server(reader: Reader, entry: ServerEntry) -> Server:
    """Return it at the name of its Service, without one at the addresses of its pods, with their flags."""
    workload = entry.workload
    address = entry.address or join_addresses(await find_pods(reader, workload), workload.serve.port)
    return entry.to_server(address, await _find_setting(reader, workload))


async def _find_setting(reader: Reader, workload: Workload) -> Setting:
    """Return the flags of the pods that serve.

    While a rolling update of the operator's waits for room, they are older than those of the template.
    """
    if workload.ours or is_complete(workload.document):
        return workload.serve.setting
    pods = await reader.find(kubernetes.POD, workload.selector)
    container = str(workload.container_document["name"])
    ready = [pod for pod in pods if (parsed := Pod.parse(pod, container)).ready and parsed.active]
    settings = [
        (await read_workload(reader, workload.document_with(pod["spec"]))).serve.setting for pod in ready
    ]
    is_common = settings and all(other == settings[0] for other in settings)
    return settings[0] if is_common else workload.serve.setting


def join_addresses(pods: Iterable[Pod], port: int) -> str:
    """Return the addresses of the pods that run, as sensors read several of them."""
    return ", ".join(sorted(pod.address(port) for pod in pods if pod.active and pod.ip))
