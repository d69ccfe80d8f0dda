"""Labels, annotations and names of trimtab's objects. Each later daemon finds them by these."""

from typing import Final

from agent.domain.digest import digest
from agent.domain.model import Server
from agent.domain.ports import Site

TARGET: Final = "trimtab.dev/target"
SITE: Final = "trimtab.dev/site"  # keeps the objects of two daemons in one namespace apart
SERVER: Final = "trimtab.dev/server"
EPOCH: Final = "trimtab.dev/epoch"

# Annotations.
LIKE: Final = "trimtab.dev/like"  # the server that this one is a copy of
DEPLOYMENT: Final = "trimtab.dev/deployment"  # of a Service: what its pods belong to
REPLICAS: Final = "trimtab.dev/replicas"  # of a Deployment that trimtab scaled to 0: how many it had
SERVES_AS: Final = "trimtab.dev/serves-as"  # of the operator's Deployment: the server that it is, or becomes
CHANGE: Final = "trimtab.dev/change"  # of the operator's Deployment: the flags that trimtab wrote

_HEX = 12
_NAME_HEX = 6
_LONGEST_LABEL = 63


def site_labels(site: Site) -> dict[str, str]:
    """Return the labels that all objects of this site have, and no others."""
    return {TARGET: site.target[:_LONGEST_LABEL], SITE: _site_digest(site)}


def server_labels(site: Site, server: str) -> dict[str, str]:
    return {**site_labels(site), SERVER: server, EPOCH: str(site.epoch)}


def pod_labels(site: Site, server: Server) -> dict[str, str]:
    """Return the labels that select the pods of a green Deployment; they never change."""
    return {SITE: _site_digest(site), SERVER: server.name}


def object_name(site: Site, server: str) -> str:
    """Return "trimtab-chat-r3-1f02ab": always the same, to find what an interrupted launch has created."""
    return f"trimtab-{server}-{_site_digest(site)[:_NAME_HEX]}"


def epoch_of(labels: dict[str, str]) -> int:
    text = labels.get(EPOCH, "")
    return int(text) if text.isdecimal() and text.isascii() else 0


def _site_digest(site: Site) -> str:
    return digest([site.target, str(site.state_dir.absolute())]).removeprefix("sha256:")[:_HEX]
