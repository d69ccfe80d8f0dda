"""Labels, annotations and names of flettner's objects. Each later daemon finds them by these."""

import re
from collections.abc import Mapping
from typing import Any, Final

from flettner.agent.domain.digest import short_digest
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site

PREFIX: Final = "flettner.dev/"
TARGET: Final = "flettner.dev/target"
SITE: Final = "flettner.dev/site"  # keeps the objects of two daemons in one namespace apart
SERVER: Final = "flettner.dev/server"
EPOCH: Final = "flettner.dev/epoch"

DRAINS: Final = (
    "flettner.dev/drains"  # of a pod that has left its workload: the server whose requests it ends
)

# Annotations.
LIKE: Final = "flettner.dev/like"  # the server that this one is a copy of
DEPLOYMENT: Final = "flettner.dev/deployment"  # of a Service: what its pods belong to
REPLICAS: Final = "flettner.dev/replicas"  # of a workload that has fewer for now: how many it is to have
SERVES_AS: Final = "flettner.dev/serves-as"  # of the operator's Deployment: the server that it is, or becomes
CHANGE: Final = "flettner.dev/change"  # of the operator's Deployment: the flags that flettner wrote
UPGRADED: Final = "flettner.dev/upgraded"  # the names of what upgrades set: image, env.NAME

_NAME_HEX = 6
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_SERVER_IN_NAME = re.compile(r"[a-z0-9-]{1,47}")  # a Service's name: 63 characters without dots


def site_labels(site: Site) -> dict[str, str]:
    """Return the labels that all objects of this site have, and no others."""
    return {TARGET: _to_label(site.target), SITE: site.digest}


def server_labels(site: Site, server: str) -> dict[str, str]:
    return {**site_labels(site), SERVER: _to_label(server), EPOCH: str(site.epoch)}


def pod_labels(site: Site, server: Server) -> dict[str, str]:
    """Return the labels that select the pods of a green Deployment; they never change."""
    return {SITE: site.digest, SERVER: _to_label(server.name)}


def service_labels(site: Site, server: str) -> dict[str, str]:
    """Return the labels by which the Service of a server of flettner's selects pods, of any workload."""
    return {SITE: site.digest, SERVES_AS: _to_label(server)}


def draining_labels(site: Site, server: str) -> dict[str, str]:
    """Return the labels of the pods that have left a server and end their last requests."""
    return {SITE: site.digest, DRAINS: _to_label(server)}


def object_name(site: Site, server: str) -> str:
    """Return "flettner-chat-r3-1f02ab": always the same, to find what an interrupted launch has created."""
    part = server if _SERVER_IN_NAME.fullmatch(server) else _shorten(server.lower(), 47)
    return f"flettner-{part}-{site.digest[:_NAME_HEX]}"


def server_of(metadata: Mapping[str, Any]) -> str:
    """Return the name of the server that an object of flettner's belongs to; empty: it is not flettner's."""
    label = (metadata.get("labels") or {}).get(SERVER, "")
    return str((metadata.get("annotations") or {}).get(SERVER, label)) if label else ""


def epoch_of(labels: dict[str, str]) -> int:
    text = labels.get(EPOCH, "")
    return int(text) if text.isdecimal() and text.isascii() else 0


def _to_label(text: str) -> str:
    return text if _LABEL.fullmatch(text) else _shorten(text, 63)


def _shorten(text: str, length: int) -> str:
    """Return letters, digits and hyphens that stand for a text: its beginning, and a digest of all of it."""
    tail = short_digest([text])
    head = re.sub(r"[^A-Za-z0-9]+", "-", text)[: length - len(tail) - 1].strip("-")
    return f"{head}-{tail}" if head else tail
