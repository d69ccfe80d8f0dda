"""The containers of one target: how a daemon finds them, and what it keeps of each to make it again.

It finds its own containers by their labels, and adopted ones by the names of the config, even if they were
renamed since. It keeps a record of each, `containers/SERVER.json`. That holds the environment with its
secrets, so only the user of the daemon may read it.
"""

import asyncio
import re
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Final

from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.container import Container, Json
from flettner.actuators.host.notes import Notes
from flettner.actuators.host.ownership_env import epoch_in
from flettner.actuators.vllm.engine import refuse_older_daemon
from flettner.agent.domain.digest import digest
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site
from flettner.agent.plugins.installation import FoundServers
from flettner.agent.retrying import retry
from flettner.clients.docker.labels import SERVER, SITE, TARGET
from flettner.vllm_facts.flag_parser import is_vllm_server

EPOCH: Final = "flettner.epoch"
SETTING: Final = "flettner.setting"  # its digest, because a value may be a secret
LIKE: Final = "flettner.like"

_NAME_HEX = 6
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_DOCUMENT = ("Id", "Name", "Image", "Config", "HostConfig", "Mounts", "NetworkSettings")
_FIELDS = ("server", "id", "ours", "epoch", "policy", "stopped", "asleep_since", "gone")  # of a record
_OURS_KEPT = 5  # records of our removed containers; records of adopted containers are kept for good
_RETRY_S = 2.0  # while the Docker daemon is away


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """`names`: of the adopted containers, as the config has them. Raises ActError without an Engine."""

    client: DockerClient
    site: Site
    names: tuple[str, ...]

    # Finding.

    async def find(self) -> dict[str, Container]:
        """Return the containers that exist, running or not, by the name of their server."""
        summaries = await self.client.list_containers(site_labels(self.site))
        ours = await asyncio.gather(*(self.client.inspect(str(summary["Id"])) for summary in summaries))
        containers: dict[str, Container] = {}
        for container in map(_as_ours, filter(None, ours)):
            if container.server not in containers or container.active:
                containers[container.server] = container
        for name in self.names:
            if (adopted := await self._find_adopted(name)) is not None:
                containers[name] = adopted
        return {name: self._with_record(container) for name, container in containers.items()}

    async def find_fenced(self) -> dict[str, Container]:
        """Raises FencedError if a newer daemon has made or kept a container here."""
        containers = await self.find()
        refuse_older_daemon(self.site, self.newest_epoch(containers.values()))
        return containers

    async def find_id(self, server: str) -> str:
        """Return the id of its container; empty: there is none. By the record while the Engine is away."""

        async def find() -> str:
            try:
                container = (await self.find()).get(server)
            except ActError:
                record = self._read(server)
                if record is None or record["gone"]:
                    raise
                return str(record["id"])
            return container.id if container else ""

        finding = AsyncRetrying(retry=retry_if_exception_type(ActError), wait=wait_fixed(_RETRY_S))
        return await retry(finding, find)

    def newest_epoch(self, containers: Iterable[Container]) -> int:
        """Return the newest epoch of the daemons that have made or kept a container here."""
        recorded = (int(record["epoch"]) for record in self._read_all())
        return max([0, *recorded, *(container.epoch for container in containers)])

    async def _find_adopted(self, name: str) -> Container | None:
        """Return the container that was adopted by this name, even if renamed; else the present holder."""
        record = self._read(name)
        container = await self.client.inspect(record["id"]) if record else None
        container = container or await self.client.inspect(name)
        if container is None or site_labels(self.site).items() <= container.labels.items():
            return None
        return replace(container, server=name)

    def _with_record(self, container: Container) -> Container:
        """Add its record. Its restart policy counts as it is now, unless flettner has stopped it."""
        record = self._read(container.server)
        if record is None or record["id"] != container.id or record["gone"]:
            return replace(container, policy=container.restart_policy)
        return replace(
            container,
            epoch=max(container.epoch, record["epoch"]),
            policy=record["policy"] if record["stopped"] else container.restart_policy,
            stopped=record["stopped"],
            asleep_since=record["asleep_since"],
        )

    # Keeping.

    async def keep(self, container: Container) -> None:
        """Write the record of a container if there is none, or if its restart policy has changed."""
        record = self._read(container.server)
        if record is None or record["id"] != container.id or record["gone"]:
            document = document_to_keep(container, await self.client.image(container.image))
            self.write(replace(container, epoch=self.site.epoch, policy=container.restart_policy), document)
        elif not record["stopped"]:  # an operator may have changed it
            self.update(container.server, policy=container.restart_policy)

    def load(self, server: str) -> Container | None:
        """Return the container as its record has it; None: there is no record that can be read."""
        record = self._read(server)
        return _of_record(record) if record else None

    def load_all(self) -> list[Container]:
        """Return the containers of all records, the latest written first."""
        return [_of_record(record) for record in self._read_all()]

    def was_ended(self, server: str) -> bool:
        """Whether flettner has stopped or removed its container."""
        record = self._read(server)
        return record is not None and (record["stopped"] or record["gone"])

    def write(self, container: Container, document: Json) -> None:
        """`document`: see `document_to_keep`."""
        record = {key: getattr(container, key) for key in _FIELDS}
        self._notes.write(container.server, {**record, "document": document})

    def update(self, server: str, **to: Any) -> None:  # noqa: ANN401 - the values of a record
        """Change values of a record; no error if there is none."""
        record = self._read(server)
        if record is not None and (changed := {**record, **to}) != record:
            self._notes.write(server, changed)

    def prune(self) -> None:
        """Remove the records of containers that flettner made and removed, except for the latest few."""
        gone = [record for record in self._read_all() if record["ours"] and record["gone"]]
        for record in gone[_OURS_KEPT:]:
            self._notes.drop(record["server"])

    def _read(self, server: str) -> Json | None:
        """Return None if there is no record, or none that can be read."""
        note = self._notes.read(server)
        return note if note and _is_record(note) else None

    def _read_all(self) -> list[Json]:
        """Return all records, the latest written first."""
        return list(filter(_is_record, self._notes.read_all()))

    @property
    def _notes(self) -> Notes:
        return Notes(self.site.state_dir / "containers")


def document_to_keep(container: Container, image: Json | None) -> Json:
    """Return the part of its document by which a like container can be made when it is gone.

    `ImageDigest` is added: the image can be pulled by it. The document holds secrets: keep it private.
    """
    inspect = container.document
    digests = (image or {}).get("RepoDigests") or [container.image_digest]
    document = {key: deepcopy(inspect[key]) for key in _DOCUMENT if key in inspect}
    networks = (inspect.get("NetworkSettings") or {}).get("Networks") or {}
    return {**document, "NetworkSettings": {"Networks": deepcopy(networks)}, "ImageDigest": digests[0]}


def server_labels(site: Site, server: Server) -> dict[str, str]:
    return site_labels(site) | {
        SERVER: server.name,
        EPOCH: str(site.epoch),
        SETTING: digest(dict(server.setting)),
        LIKE: server.like,
    }


def site_labels(site: Site) -> dict[str, str]:
    """Return the labels that all containers of this site have, and no other container."""
    return {TARGET: site.target, SITE: site.digest}


def container_name(site: Site, server_name: str) -> str:
    """Return "flettner-chat-r3-1f02ab": always the same, to find the container of an interrupted create."""
    plain = _NOT_IN_NAMES.sub("-", server_name)
    return f"flettner-{plain}-{site.digest[:_NAME_HEX]}"


async def find_unmanaged_servers() -> FoundServers:
    """Return the vLLM containers of this host that flettner did not start, each with its options.

    Raises ActError if the Docker Engine does not answer.
    """
    client = DockerClient()
    summaries = await client.list_containers({})
    foreign = [summary for summary in summaries if SERVER not in (summary.get("Labels") or {})]
    containers = await asyncio.gather(*(client.inspect(str(summary["Id"])) for summary in foreign))
    servers = [
        (replace(container, server=container.name).to_server(), {"containers": [container.name]})
        for container in containers
        if container and container.state.running and is_vllm_server(container.serve.argv)
    ]
    return FoundServers(servers=servers)


def _as_ours(container: Container) -> Container:
    labels = container.labels
    server, like, epoch = labels.get(SERVER, ""), labels.get(LIKE, ""), epoch_in(labels.get(EPOCH, ""))
    return replace(container, server=server, ours=True, like=like, epoch=epoch)


def _is_record(note: Json) -> bool:
    return note.keys() >= {*_FIELDS, "document"}


def _of_record(record: Json) -> Container:
    container = Container.parse(record["document"])
    like = container.labels.get(LIKE, "") if record["ours"] else ""
    return replace(container, like=like, **{key: record[key] for key in _FIELDS})
