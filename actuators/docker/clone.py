"""Make the body of a container that is like another one but for its flags, its name and its place.

What the Engine shows by inspect is what it takes by create, but for a dozen fields that belong to one
container only; those are left out or replaced here, and each one that anybody could miss is noted.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from actuators.docker.command import Json, ReadFiles, place_in, with_command, with_environment
from actuators.docker.mounts import binds_of, mounts_of
from actuators.docker.networks import (
    at_create,
    before_start,
    given_hostname,
    links_in,
    mode_of,
    own_network,
    published,
)
from actuators.docker.obstacles import foreign_label, notes_of, obstacles, unlike
from agent.domain.errors import ActError
from vllm_facts.values import Value

__all__ = ["CreateRequest", "clone", "obstacles", "spec_of"]

_SPEC = ("Id", "Name", "Image", "Config", "HostConfig", "Mounts", "NetworkSettings")
_NOT_CONFIG = frozenset(
    {"ArgsEscaped", "AttachStderr", "AttachStdin", "AttachStdout", "Hostname", "MacAddress", "OnBuild"}
)
_NOT_HOST = frozenset({"ConsoleSize", "ContainerIDFile", "Links"})
_LONGEST_HOSTNAME = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """A container to be made."""

    image: str  # the id that is pinned: the tag may have moved on
    body: Json = field(repr=False)  # for POST /containers/create; holds secrets
    name: str
    networks: tuple[tuple[str, Json], ...] = ()  # to be connected between create and start
    notes: tuple[str, ...] = ()  # what is not as in the original, for who decides


def spec_of(inspect: Json, image: Json | None) -> Json:
    """What must be kept of a container to make a like one when it is gone; reads as an inspect document.

    `ImageDigest` is added: where the image can be had again. Holds secrets: keep it private.
    """
    digests = (image or {}).get("RepoDigests") or [inspect.get("ImageDigest", "")]
    kept = {key: deepcopy(inspect[key]) for key in _SPEC if key in inspect}
    networks = (inspect.get("NetworkSettings") or {}).get("Networks") or {}
    return {**kept, "NetworkSettings": {"Networks": deepcopy(networks)}, "ImageDigest": digests[0]}


def clone(
    inspect: Json,
    *,
    name: str,
    labels: Mapping[str, str],
    setting: Mapping[str, Value],
    host_port_ip: str = "127.0.0.1",
    host_port: int | None = None,
    port: int | None = None,
    files: ReadFiles | None = None,
) -> CreateRequest:
    """The container `name`: like the one inspected, with this whole setting (empty: with its own).

    While it is green it restarts never, is reached on `host_port` of `host_port_ip`, and answers to its own
    name only. Without `host_port` the engine chooses one, another at each start. In the host's network there
    is nothing to publish: `port` is where it listens then. Raises FlagError when the flags cannot be
    changed, ActError when something else stands in the way.
    """
    entrypoint, command = with_command(inspect, setting, port=port, files=files)
    if problems := unlike(inspect, files):
        raise ActError("; ".join(problems))
    body = {
        **_config(inspect, name, labels),
        "Image": inspect["Image"],
        "Env": with_environment(inspect, setting, port=port, files=files),
        "Entrypoint": entrypoint,
        "Cmd": command,
        "HostConfig": _host_config(inspect),
    }
    if own_network(inspect):
        listens = place_in(inspect, files)[1] if port is None else port
        bound = dict.fromkeys(published(inspect, listens), "")
        bound |= {f"{listens}/tcp": str(host_port or "")}
        _publish(body, bound, host_port_ip)
    elif port is None:
        raise ActError("a container in the host's network needs a port of its own to listen on")
    if network := at_create(inspect, name):
        body["NetworkingConfig"] = {"EndpointsConfig": network}
    return CreateRequest(
        image=inspect["Image"],
        body=body,
        name=name,
        networks=before_start(inspect, name),
        notes=notes_of(inspect, files),
    )


def _config(inspect: Json, name: str, labels: Mapping[str, str]) -> Json:
    config = inspect["Config"]
    kept = {
        key: deepcopy(value) for key, value in config.items() if key not in _NOT_CONFIG and value is not None
    }
    own = {key: value for key, value in (config.get("Labels") or {}).items() if not foreign_label(key)}
    return {**kept, **_hostname(inspect, name), "Labels": {**own, **labels}}


def _hostname(inspect: Json, name: str) -> Json:
    """One that was given by hand is a name in the network too, so green's must be another one."""
    given = given_hostname(inspect)
    if not given:
        return {}
    if mode_of(inspect) == "host":
        return {"Hostname": given}
    return {"Hostname": re.sub(r"[^A-Za-z0-9-]", "-", name)[:_LONGEST_HOSTNAME].strip("-")}


def _host_config(inspect: Json) -> Json:
    kept = {
        key: deepcopy(value)
        for key, value in inspect["HostConfig"].items()
        if key not in _NOT_HOST and value is not None
    }
    return {
        **kept,
        "Binds": binds_of(inspect),
        "Mounts": mounts_of(inspect),
        "Links": [f"{other}:{alias}" for other, alias in links_in(inspect)],
        "AutoRemove": False,  # or the engine would throw away what is left of it before anybody has looked
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "PortBindings": {},
        "PublishAllPorts": False,
    }


def _publish(body: Json, ports: Mapping[str, str], ip: str) -> None:
    body["ExposedPorts"] = {**(body.get("ExposedPorts") or {}), **{port: {} for port in ports}}
    body["HostConfig"]["PortBindings"] = {
        port: [{"HostIp": ip, "HostPort": there}] for port, there in ports.items()
    }
