"""Ask an image's registry for the digest of its tag, and for its CUDA (OCI distribution specification)."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp

from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes.documents import Json
from flettner.primitives.bounded import parse_json, read_body

_WITHIN_S = 10.0
HUB_HOST = "registry-1.docker.io"
_HUB = "docker.io"
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?")  # spoken to by plain HTTP, as container engines do
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CUDA = "CUDA_VERSION="  # a variable of NVIDIA's images, which vLLM's are made from
_UNUSABLE = (aiohttp.ClientError, ValueError, LookupError, TypeError, AttributeError)
_CHALLENGE = re.compile(r'(\w{1,32})="([^"]*)"')
_MANIFESTS = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "docker.distribution.manifest.list.v2",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.v2",
    )
)


class MissingImageError(ActError):
    """The registry has no such image."""


async def find_digest(image: str, authorization: str = "") -> str:
    """Return the digest of REPOSITORY:TAG, `sha256:…`. Raises ActError.

    `authorization`: the header with a login (Basic). It is sent only if the registry asks for it, to it or
    to where it says that tokens are given, over TLS or on this host.
    """
    host, repository, tag = split_image(image)
    try:
        async with _open(image, authorization) as registry:
            status, headers = await registry.head(f"manifests/{tag}")
    except TimeoutError as error:
        raise ActError(f"{host} does not answer within {_WITHIN_S:g} s") from error
    except _UNUSABLE as error:
        raise ActError(f"{host} cannot be asked: {error}") from error
    if status == 404:  # noqa: PLR2004
        raise MissingImageError(f"{host} has no image {repository}:{tag}")
    digest = headers.get("Docker-Content-Digest", "")
    if status != 200 or _DIGEST.fullmatch(digest) is None:  # noqa: PLR2004
        caller = "with this login" if authorization else "without credentials"
        raise ActError(f"{host} answers {status} without a digest to a caller {caller}")
    return digest


async def find_cuda(image: str, authorization: str = "") -> str:
    """Return the CUDA_VERSION of REPOSITORY:TAG or REPOSITORY:TAG@DIGEST; empty if nobody tells.

    Of an image for several platforms that of the first, which all have alike.
    """
    name, _, digest = image.partition("@")
    with suppress(TimeoutError, *_UNUSABLE):
        async with _open(name, authorization) as registry:
            manifest = await registry.get(f"manifests/{digest or split_image(name)[2]}")
            if "config" not in manifest:
                manifest = await registry.get(f"manifests/{manifest['manifests'][0]['digest']}")
            config = await registry.get(f"blobs/{manifest['config']['digest']}")
            lines = [str(line) for line in config["config"].get("Env") or ()]
            return next((line.removeprefix(_CUDA) for line in lines if line.startswith(_CUDA)), "")[:20]
    return ""


def split_image(image: str) -> tuple[str, str, str]:
    """Return the host of the registry, the repository and the tag: Docker Hub's where no host is named."""
    first, slash, rest = image.partition("@")[0].partition("/")
    named = slash and ("." in first or ":" in first or first == "localhost")
    host, path = (first, rest) if named else (_HUB, image.partition("@")[0])
    repository, _, tag = path.partition(":")
    if host == _HUB:
        host, repository = HUB_HOST, repository if "/" in repository else f"library/{repository}"
    return host, repository, tag or "latest"


@asynccontextmanager
async def _open(image: str, authorization: str) -> "AsyncIterator[_Repository]":
    host, repository, _ = split_image(image)
    url = f"{'http' if _LOCAL.fullmatch(host) else 'https'}://{host}/v2/{repository}"
    async with (
        asyncio.timeout(_WITHIN_S),
        aiohttp.ClientSession(trust_env=True, headers={"Accept": _MANIFESTS}) as session,
    ):
        yield _Repository(session=session, url=url, authorization=authorization)


@dataclass(slots=True, kw_only=True)
class _Repository:
    """One repository of a registry. `allowed`: the header that it has accepted from us."""

    session: aiohttp.ClientSession
    url: str
    authorization: str
    allowed: dict[str, str] = field(default_factory=dict)

    async def head(self, path: str) -> tuple[int, Mapping[str, str]]:
        status, headers = await self._head(path)
        if status == 401:  # noqa: PLR2004 - public images, too, need a token
            challenge = headers.get("WWW-Authenticate", "")
            basic = challenge.lower().startswith("basic") and self.authorization
            allowed = basic or f"Bearer {await _get_token(self.session, challenge, self.authorization)}"
            self.allowed = {"Authorization": allowed}
            status, headers = await self._head(path)
        return status, headers

    async def get(self, path: str) -> Json:
        """Return a document. What a registry keeps elsewhere is read there, without our header."""
        if not self.allowed:
            await self.head(path)
        async with self.session.get(f"{self.url}/{path}", headers=self.allowed) as answer:
            answer.raise_for_status()
            document: Json = parse_json(await read_body(answer))
            return document

    async def _head(self, path: str) -> tuple[int, Mapping[str, str]]:
        asking = self.session.head(f"{self.url}/{path}", headers=self.allowed, allow_redirects=False)
        async with asking as answer:
            return answer.status, answer.headers.copy()


async def _get_token(session: aiohttp.ClientSession, challenge: str, authorization: str) -> str:
    """Return the token for anybody, or for this login, from where the registry says that it is given."""
    asked = dict(_CHALLENGE.findall(challenge))
    realm = asked.pop("realm", "")
    host = realm.partition("://")[2].partition("/")[0]
    if not realm.startswith("https://") and _LOCAL.fullmatch(host) is None:
        raise ValueError("it gives no token to a caller without credentials")
    headers = {"Authorization": authorization} if authorization else {}
    async with session.get(realm, params=asked, headers=headers, allow_redirects=False) as answer:
        document = parse_json(await read_body(answer))
        return str(document.get("token") or document["access_token"])
