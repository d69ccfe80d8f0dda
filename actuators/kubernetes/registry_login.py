"""The login at an image's registry: of the pull secrets of the pods, else of the daemon's user."""

import asyncio
import base64
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from flettner.actuators.kubernetes.image_registry import HUB_HOST
from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes.client import SECRET, Reader
from flettner.clients.kubernetes.documents import Json

_HUB_NAMES = frozenset({"docker.io", "index.docker.io", HUB_HOST})


@dataclass(frozen=True, slots=True)
class Login:
    """`source`: where it is written, for messages."""

    user: str
    password: str = field(repr=False)
    source: str

    @property
    def basic(self) -> str:
        """The header Authorization (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


async def find_login(reader: Reader, host: str, pods: Iterable[Json]) -> Login | None:
    """Return the login at this host, by those secrets of these pod specs that may be read; None: none."""
    names = {str(secret["name"]) for pod in pods for secret in pod.get("imagePullSecrets") or ()}
    for name in sorted(names):
        with suppress(ActError, ValueError):  # the daemon has no right to read it unless it was given one
            secret = await reader.get(SECRET, name) or {}
            written = base64.b64decode((secret.get("data") or {}).get(".dockerconfigjson", ""))
            if login := read_logins(written, f"the secret {name}").get(host):
                return login
    return (await asyncio.to_thread(_read_own)).get(host)


def _read_own() -> Mapping[str, Login]:
    file = Path(os.environ.get("DOCKER_CONFIG") or "~/.docker").expanduser() / "config.json"
    try:
        return read_logins(file.read_bytes(), str(file))
    except OSError:
        return {}


def read_logins(config: bytes, source: str) -> Mapping[str, Login]:
    """Return the logins of a config.json of Docker by host; credential helpers are not asked."""
    logins: dict[str, Login] = {}
    try:
        entries = dict(json.loads(config)["auths"])
    except (ValueError, LookupError, TypeError):
        return logins
    for name, entry in entries.items():
        with suppress(ValueError, TypeError, AttributeError):
            both = base64.b64decode(entry.get("auth") or "").decode()
            user, _, password = both.partition(":")
            user, password = entry.get("username") or user, entry.get("password") or password
            if user and password:
                logins[_host(name)] = Login(str(user), str(password), source)
    return logins


def _host(name: str) -> str:
    """Return HOST[:PORT] of a key, such as https://index.docker.io/v1/."""
    host = name.partition("://")[2] or name
    host = host.partition("/")[0]
    return HUB_HOST if host in _HUB_NAMES else host
