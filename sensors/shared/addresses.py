"""The addresses behind a server's: a headless Service of Kubernetes resolves to its ready pods."""

from flettner.agent.domain.errors import SensorError
from flettner.primitives import sockets
from flettner.primitives.address import Address


async def resolve(address: str) -> tuple[str, ...]:
    """Return `HOST:PORT` of each address that the name has now, sorted; an IP address is its own.

    `address`: also several with ", " between them. Raises OSError if the name does not resolve, and
    SensorError.
    """
    if ", " in address:
        return tuple(address.split(", "))
    try:
        name = Address.parse(address)
    except ValueError as error:
        raise SensorError(str(error)) from error
    return tuple(sorted(map(str, await sockets.resolve(name))))
