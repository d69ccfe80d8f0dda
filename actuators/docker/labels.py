"""Labels and names of our containers. Each later daemon finds them by these."""

import re
from typing import Final

from flettner.agent.domain.digest import digest
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site

TARGET: Final = "flettner.target"
SERVER: Final = "flettner.server"
EPOCH: Final = "flettner.epoch"
SETTING: Final = "flettner.setting"  # its digest, because a value may be a secret
LIKE: Final = "flettner.like"
STATE_DIR: Final = "flettner.site"  # keeps the containers of two daemons on one host apart

_HEX = 12
_NAME_HEX = 6
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


def server_labels(site: Site, server: Server) -> dict[str, str]:
    return site_labels(site) | {
        SERVER: server.name,
        EPOCH: str(site.epoch),
        SETTING: digest(dict(server.setting)),
        LIKE: server.like,
    }


def site_labels(site: Site) -> dict[str, str]:
    """Return the labels that all containers of this site have, and no other container."""
    return {TARGET: site.target, STATE_DIR: site_digest(site)}


def container_name(site: Site, server_name: str) -> str:
    """Return "flettner-chat-r3-1f02ab": always the same, to find the container of an interrupted create."""
    plain = _NOT_IN_NAMES.sub("-", server_name)
    return f"flettner-{plain}-{site_digest(site)[:_NAME_HEX]}"


def site_digest(site: Site) -> str:
    """Return 12 hexadecimal digits of the target and its state directory."""
    return digest([site.target, str(site.state_dir.absolute())]).removeprefix("sha256:")[:_HEX]
