"""The verdict on one request: the request that goes to the engine, rebuilt by the proxy.

Each named object is looked up first, and the full id of the engine's answer is used from then on, so that an
id prefix or a renamed container cannot redirect the request.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from flettner.tools.docker_proxy.create import create_reasons, update_reasons
from flettner.tools.docker_proxy.endpoints import connect_reasons, disconnect_reasons, networks_named
from flettner.tools.docker_proxy.engine import Container, EngineSocket
from flettner.tools.docker_proxy.errors import Absent, Refused
from flettner.tools.docker_proxy.fields import FieldContext, Reasons, shown
from flettner.tools.docker_proxy.mounts import volumes_named
from flettner.tools.docker_proxy.policy import NAME, ProxyPolicy, like_any
from flettner.tools.docker_proxy.request import Ask
from flettner.tools.docker_proxy.strict_json import Json, encode, parse

_IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*([:@/][a-zA-Z0-9_][a-zA-Z0-9_.-]*)*")
_MOST_REASONS = 6
_OFF = ("", "0", "false", "False")
_TOP = {"ping": "/_ping", "version": "/version", "info": "/info", "events": "/events"}
_TAIL = {"inspect": "/json", "file": "/archive", "remove": ""}  # the remaining actions end in their own name


@dataclass(frozen=True, slots=True, kw_only=True)
class Onward:
    """A request rebuilt by the proxy. `filtered`: the answer is filtered to flettner's own entries."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    filtered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """`adopted_ids`: ids of containers seen under an adopted name; it grows."""

    context: FieldContext
    engine: EngineSocket
    adopted_ids: set[str] = field(default_factory=set)

    @property
    def policy(self) -> ProxyPolicy:
        return self.context.policy

    async def onward(self, ask: Ask, body: bytes) -> Onward:
        """Raises Refused, Absent, EngineSilent."""
        if not ask.route.largest_body and body not in (b"", b"{}", b"null"):
            raise Refused(f"{ask.route.kind} takes no body")
        match ask.route.kind:
            case "create":
                return await self._create(ask, parse(body))
            case "update":
                changes = parse(body)
                _refuse_if_any(update_reasons(changes, self.context))
                return await self._container(ask, "/update", encode(changes))
            case "connect" | "disconnect":
                return await self._connect(ask, parse(body))
            case "list":
                return _forward(ask, "/containers/json", filtered=self.policy.containers.read == "ours")
            case "image":
                return _forward(ask, f"/images/{_check_image_name(ask.subject)}/json")
            case "network":
                return _forward(ask, f"/networks/{await self._network(ask.subject)}")
            case kind if kind in _TOP:
                return _forward(ask, _TOP[kind])
            case kind:
                return await self._container(ask, _TAIL.get(kind, f"/{kind}"))

    async def _container(self, ask: Ask, tail: str, body: bytes | None = None) -> Onward:
        seen = await self.engine.container(ask.subject)
        if not self.is_own(seen) and not self._may_read(ask, seen):
            raise Refused(f"{ask.route.kind}: {self._describe_third_party(seen)}")
        if seen.name in self.policy.containers.adopt:
            self.adopted_ids.add(seen.id)
        if ask.query.get("v", "0") not in _OFF and not self._has_label(seen):
            raise Refused(
                f"remove: {seen.name} was adopted: flettner may not remove its anonymous volumes (v=1)"
            )
        if ask.route.kind == "file":
            self._file(ask.query.get("path", ""))
        if ask.route.kind == "rename":
            self._rename(seen, ask.query.get("name", "").removeprefix("/"))
        return _forward(ask, f"/containers/{seen.id}{tail}", body=body)

    def _may_read(self, ask: Ask, seen: Container) -> bool:
        """True if the policy permits any container, or if it was adopted and renamed by hand later."""
        if ask.route.changes or ask.route.kind == "file":
            return False
        return self.policy.containers.read == "all" or seen.id in self.adopted_ids

    def is_own(self, seen: Container) -> bool:
        return self._has_label(seen) or seen.name in self.policy.containers.adopt

    def _has_label(self, seen: Container) -> bool:
        return bool(seen.labels.get(self.policy.containers.label))

    def _describe_third_party(self, seen: Container) -> str:
        label = self.policy.containers.label
        return f"the container {seen.name} has no label {label} and is not in the policy's containers.adopt"

    def _rename(self, seen: Container, name: str) -> None:
        if not self.policy.is_own_name(name):
            raise Refused(f"rename: {shown(name)} is neither in containers.names nor in containers.adopt")
        if not self._has_label(seen) and name not in self.policy.containers.adopt:
            raise Refused(
                f"rename: {seen.name} is known by its name alone: as {shown(name)} it would "
                "no longer be recognised"
                " (add that name to containers.adopt)"
            )

    def _file(self, path: str) -> None:
        tricky = any(part in ("", ".", "..") for part in path[1:].split("/"))
        if tricky or not like_any(self.policy.containers.files, path):
            raise Refused(f"file: {shown(path)} is not in the policy's containers.files")

    async def _create(self, ask: Ask, body: Json) -> Onward:
        name = ask.query.get("name", "").removeprefix("/")
        if not self.policy.is_own_name(name):
            raise Refused(
                f"create: the name {shown(name)} is neither in containers.names nor in containers.adopt"
            )
        _refuse_if_any(create_reasons(body, self.context))
        await self.check_named_resources(body)
        return _forward(ask, "/containers/create", body=encode(body))

    async def check_named_resources(self, body: Json) -> None:
        """Check what a create body names and the engine knows. Raises Refused, Absent, EngineSilent."""
        for network in networks_named(body):
            await self._network(network)
        volumes = set(volumes_named(body.get("HostConfig") or {}))
        images = await self.engine.image(_check_image_name(body["Image"]))
        bad_image = not any(like_any(self.policy.create.images, image) for image in images)
        bad_volumes = {volume for volume in sorted(volumes) if not await self._is_volume_allowed(volume)}
        bad_labels = self._find_labels_of_others(body)
        if (bad_image or bad_volumes or bad_labels) and self.policy.create.as_adopted:
            for adopted in await self._find_adopted():
                bad_image &= adopted.image not in images
                bad_volumes -= adopted.volumes
                bad_labels -= adopted.labels.items()
        if bad_image:
            raise Refused(f"Image: {', '.join(images)}: none is in the policy's create.images")
        if bad_volumes:
            raise Refused(f"volumes not in the policy's mounts.volumes: {', '.join(sorted(bad_volumes))}")
        if bad_labels:
            names = ", ".join(sorted(shown(name) for name, _ in bad_labels))
            raise Refused(f"labels not in the policy's create.labels: {names}")

    def _find_labels_of_others(self, body: Json) -> set[tuple[str, object]]:
        """Labels that are not flettner's own: a reverse proxy or a scheduler of the host may act on them."""
        allowed = (self.policy.containers.label, *self.policy.create.labels)
        labels = (body.get("Labels") or {}).items()
        return {(name, value) for name, value in labels if not like_any(allowed, name)}

    async def _find_adopted(self) -> list[Container]:
        """Return existing containers with exactly this name (the engine would also match an id prefix)."""
        adopted = []
        for name in self.policy.containers.adopt:
            try:
                seen = await self.engine.container(name)
            except Absent:
                continue
            if seen.name == name:
                adopted.append(seen)
        return adopted

    async def _is_volume_allowed(self, name: str) -> bool:
        """A volume that only matches a pattern must be plain: `local` with options can be any directory."""
        volumes = self.policy.mounts.volumes
        if name in volumes:
            return True
        if not like_any(volumes, name):
            return False
        try:
            driver, options = await self.engine.volume(name)
        except Absent:
            return True  # the engine creates a plain one
        return driver == "local" and not options

    async def _network(self, ref: str) -> str:
        """Return the id of an allowed network. The driver reveals the host's network under any name."""
        if not NAME.fullmatch(ref):
            raise Refused(f"network: {shown(ref)} is not the name of a network")
        networks = self.policy.networks
        net_id, name, driver = await self.engine.network(ref)
        if driver == "host":
            if not networks.host:
                raise Refused("network: the host's network (networks.host is false)")
        elif driver != "null" and not like_any(networks.names, name):
            raise Refused(f"network: {shown(name)} is not in the policy's networks.names")
        return net_id

    async def _connect(self, ask: Ask, body: Json) -> Onward:
        reasons = connect_reasons if ask.route.kind == "connect" else disconnect_reasons
        _refuse_if_any(reasons(body, self.context))
        name = str(body.get("Container") or "")
        if not NAME.fullmatch(name):
            raise Refused(f"{ask.route.kind}: {shown(name)} is not the name of a container")
        seen = await self.engine.container(name)
        if not self.is_own(seen):
            raise Refused(f"{ask.route.kind}: {self._describe_third_party(seen)}")
        network = await self._network(ask.subject)
        onward = encode({**body, "Container": seen.id})
        return _forward(ask, f"/networks/{network}/{ask.route.kind}", body=onward)


def _forward(ask: Ask, path: str, body: bytes | None = None, *, filtered: bool = False) -> Onward:
    return Onward(
        method=ask.route.method, path=ask.version + path, query=ask.query, body=body, filtered=filtered
    )


def _check_image_name(ref: str) -> str:
    if not _IMAGE.fullmatch(ref):
        raise Refused(f"Image: {shown(ref)} is not the name of an image")
    return ref


def _refuse_if_any(reasons: Reasons) -> None:
    if refusals := list(reasons):
        more = f"; and {len(refusals) - _MOST_REASONS} more" if len(refusals) > _MOST_REASONS else ""
        raise Refused("; ".join(refusals[:_MOST_REASONS]) + more)
