"""The labels and names by which a container is known as ours, by a daemon that did not make it too."""

import re
from typing import Final

from agent.domain.digest import digest
from agent.domain.model import Server
from agent.domain.ports import Site

TARGET: Final = "trimtab.target"
SERVER: Final = "trimtab.server"
EPOCH: Final = "trimtab.epoch"
SETTING: Final = "trimtab.setting"  # its digest: a value may be a secret
LIKE: Final = "trimtab.like"
STATE_DIR: Final = "trimtab.site"  # two daemons of one host do not see each other's

_HEX = 12
_NAME_HEX = 6
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


def labels_of(site: Site, server: Server) -> dict[str, str]:
    return ours(site) | {
        SERVER: server.name,
        EPOCH: str(site.epoch),
        SETTING: digest(dict(server.setting)),
        LIKE: server.like,
    }


def ours(site: Site) -> dict[str, str]:
    """What every container of this site bears, and no other does: also a filter for a list."""
    return {TARGET: site.target, STATE_DIR: site_digest(site)}


def container_name(site: Site, server_name: str) -> str:
    """Always the same, so that a create that was cut short is found again: "trimtab-chat-r3-1f02ab"."""
    plain = _NOT_IN_NAMES.sub("-", server_name)
    return f"trimtab-{plain}-{site_digest(site)[:_NAME_HEX]}"


def site_digest(site: Site) -> str:
    """Hexadecimal, of the target and where its state lies."""
    return digest([site.target, str(site.state_dir.absolute())]).removeprefix("sha256:")[:_HEX]
