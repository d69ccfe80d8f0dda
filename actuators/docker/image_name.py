"""Name the image of a like container as the original does, as long as that names the same image."""

from collections.abc import Iterator

from flettner.actuators.docker.client import DockerClient
from flettner.actuators.docker.spec import ContainerSpec, Json


async def find_image_name(client: DockerClient, spec: ContainerSpec) -> str:
    """Return the name:tag of the image; once the tag has moved, its name@digest, or its id without one."""
    image = await client.image(spec.image)
    if image is None:
        return spec.image
    for name in _names(spec.image_tag, image):
        named = await client.image(name)
        if named is not None and named["Id"] == image["Id"]:
            return name
    return spec.image


def _names(tag: str, image: Json) -> Iterator[str]:
    """The original's own name first, then the digests of the same repository."""
    repository = tag.partition("@")[0]
    if ":" in repository.rpartition("/")[2]:
        repository = repository.rpartition(":")[0]
    if tag:
        yield tag
    for digest in image.get("RepoDigests") or ():
        if str(digest).partition("@")[0] == repository:
            yield str(digest)
