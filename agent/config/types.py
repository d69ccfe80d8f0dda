"""Value types of the config file that TOML lacks: durations, addresses, names, switches."""

import re
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator

from flettner.agent.domain.upgrade import find_bad_variable
from flettner.agent.plugins.option_errors import quote
from flettner.primitives.address import UNIX, Address, Listener, UnixSocket, parse_ip
from flettner.vllm_facts.values import Value

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|d)")
_NAME = re.compile(r"[a-z0-9-]{1,63}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})")
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,254}\$?")
_CERTIFIED = re.compile(r"[\x21-\x7e]{1,80}")
_MOST_LISTENERS = 8
_LONGEST_S = 366 * 86400


def seconds(value: object) -> float:
    """Parse "500ms", "30s", "10m", "1h", "2d", or a number of seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        duration = value
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        duration = float(match[1]) * _UNITS_S[match[2]]
    else:
        raise ValueError(f'must be a duration like "500ms", "30s", "10m" or "1h", not {quote(value)}')
    if not 0 <= duration <= _LONGEST_S:  # also for NaN
        raise ValueError(f"must be a duration of 0 s to 366 d, not {quote(value)}")
    return float(duration)


def env_name(value: object) -> str:
    """Parse the name of an environment variable that a change may set."""
    if not isinstance(value, str) or (problem := find_bad_variable(value)):
        raise ValueError(problem if isinstance(value, str) else f"must be a name, not {quote(value)}")
    return value


def positive_seconds(value: object) -> float:
    duration = seconds(value)
    if duration == 0:
        raise ValueError("must be longer than 0 s")
    return duration


def address(value: object) -> Address:
    """Parse a `host:port` with an IP address or `localhost`; IPv6 as `[::1]:8080`."""
    if isinstance(value, str):
        with suppress(ValueError):
            parsed = Address.parse(value)
            if parsed.host == "localhost" or parse_ip(parsed.host) is not None:
                return parsed
    raise ValueError(
        f'must be an IP address and a port of at most 65535, like "127.0.0.1:8080", not {quote(value)}'
    )


def listeners(value: object) -> tuple[Listener, ...]:
    """Parse one or several addresses: `unix:/path` or `host:port`."""
    listed = (value,) if isinstance(value, str) else value
    if not isinstance(listed, tuple | list) or not 1 <= len(listed) <= _MOST_LISTENERS:
        raise ValueError(
            f'must be an address like "unix:/run/flettner/api.sock" or "127.0.0.1:8090", or a list of up to '
            f"{_MOST_LISTENERS} of them, not {quote(value)}"
        )
    return tuple(
        UnixSocket.parse(text) if isinstance(text, str) and text.startswith(UNIX) else address(text)
        for text in listed
    )


def host_name(value: object) -> str:
    """Check a name as in a Host header, without the port; IPv6 in brackets."""
    if not isinstance(value, str) or not _HOST.fullmatch(value):
        raise ValueError(
            f'must be a name like "flettner.example.org" or an address, without a port, not {quote(value)}'
        )
    return value.lower()


def network(value: object) -> IPv4Network | IPv6Network:
    """Parse an IP address, or a network of them with its prefix. Not that of every address: anybody's."""
    why = 'must be an address or a network like "127.0.0.1" or "10.0.0.0/8"'
    try:
        if not isinstance(value, str) or not value.isprintable():
            raise ValueError("no text")  # noqa: TRY301 - one message for both
        parsed = ip_network(value)
    except ValueError:
        raise ValueError(f"{why}, without bits behind its prefix, not {quote(value)}") from None
    if parsed.prefixlen == 0:
        raise ValueError(f"{why}, not {value}: that is every client, and each could name any address")
    return parsed


def account(value: object) -> str:
    """Check a user or group of this host, by name or number."""
    if not isinstance(value, str) or not _ACCOUNT.fullmatch(value):
        raise ValueError(f"must be the name or the number of an account, not {quote(value)}")
    return value


def certificate_name(value: object) -> str:
    """Check a name in a client's certificate: a host name, an e-mail address, a URI."""
    if not isinstance(value, str) or not _CERTIFIED.fullmatch(value):
        raise ValueError(f"must be a name in a certificate, without spaces, not {quote(value)}")
    return value


def path_text(value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"must be a path, not {quote(value)}")
    return value


def public_url(value: object) -> str:
    """Check the console's URL; return it without a trailing slash."""
    what = 'must be a URL like "https://flettner.example.org", without a query, not '
    if not isinstance(value, str) or not value.isprintable() or " " in value:
        raise ValueError(f"{what}{quote(value)}")
    parts = urlsplit(value)  # raises ValueError by itself, too
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{what}{quote(value)}")
    if parts.username is not None:
        raise ValueError("must be a URL without a name and password: it is part of every notice")
    return value.rstrip("/")


def target_name(value: object) -> str:
    """Check a target's name, which is also the prefix of its servers' and rollouts' names."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"must be lower-case letters, digits and hyphens, at most 63, not {quote(value)}")
    return value


def switch(value: object) -> dict[str, Any] | bool:
    """Check a plugin's options, or `false` to disable it."""
    if not isinstance(value, dict | bool):
        raise ValueError(f"must be a table of options, or false, not {quote(value)}")  # noqa: TRY004
    return value


def knob_value(value: object) -> Value:
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ValueError(f"must be a number, a string, true or false, not {quote(value)}")
    return value


Seconds = Annotated[float, BeforeValidator(seconds)]
PositiveSeconds = Annotated[float, BeforeValidator(positive_seconds)]
ListenAddress = Annotated[Address, BeforeValidator(address)]
Listeners = Annotated[tuple[Listener, ...], BeforeValidator(listeners)]
HostName = Annotated[str, BeforeValidator(host_name)]
ProxyNetwork = Annotated[IPv4Network | IPv6Network, BeforeValidator(network)]
Account = Annotated[str, BeforeValidator(account)]
CertificateName = Annotated[str, BeforeValidator(certificate_name)]
PathText = Annotated[str, BeforeValidator(path_text)]
PublicUrl = Annotated[str, BeforeValidator(public_url)]
EnvName = Annotated[str, BeforeValidator(env_name)]
TargetName = Annotated[str, BeforeValidator(target_name)]
Switch = Annotated[Any, BeforeValidator(switch)]
KnobValue = Annotated[Any, BeforeValidator(knob_value)]
