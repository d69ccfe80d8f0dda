"""Parse a request of the Engine API: the allow-list of methods, paths and parameters.

The raw target is parsed before any decoding: targets that need decoding are refused, because the engine might
decode them differently.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from flettner.tools.docker_proxy.errors import Refused

OLDEST_API = 24  # before 1.24 `start` took a HostConfig of its own
LONGEST_TARGET = 8000
_PLAIN = re.compile(r"/[A-Za-z0-9_.:@+/-]*")
_VERSION = re.compile(r"/v1\.(0|[1-9][0-9]{0,2})(?=/)")
_ID = r"(?P<subject>[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127})"
_IMAGE = r"(?P<subject>[a-zA-Z0-9][a-zA-Z0-9_.:@+/-]{0,511})"

RequestCheck = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedRoute:
    kind: str
    method: str
    path: re.Pattern[str]
    query: Mapping[str, RequestCheck]
    largest_body: int = 0  # bytes; 0: an empty one, or `{}`

    @property
    def changes(self) -> bool:
        return self.method in ("POST", "DELETE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """`version` is "" or "/v1.41"; `subject` as the client wrote it; `query` has each parameter once."""

    route: MatchedRoute
    version: str
    subject: str
    query: Mapping[str, str]


def _fits(pattern: str) -> RequestCheck:
    return lambda text: re.fullmatch(pattern, text) is not None


_FLAG = _fits("0|1|true|false|True|False|")
_NO = _fits("0|false|False|")
_NUMBER = _fits(r"-?[0-9]{1,12}|")
_TIME = _fits(r"[0-9]{1,12}(\.[0-9]{1,9})?|")
_SIGNAL = _fits(r"[A-Z0-9+-]{1,16}|")
_NAME = _fits(r"/?[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_SHORT = _fits(r"[^\x00-\x1f]{0,4000}")


_CONTAINER = f"/containers/{_ID}"
_NETWORK = f"/networks/{_ID}"
_SMALL, _LARGE = 16 * 1024, 256 * 1024
_NO_QUERY: Mapping[str, RequestCheck] = {}
_LOGS = {
    **dict.fromkeys(("stdout", "stderr", "follow", "timestamps", "details"), _FLAG),
    "since": _TIME,
    "until": _TIME,
    "tail": _fits("all|[0-9]{1,9}|"),
}
_LIST = {"all": _FLAG, "size": _FLAG, "trunc_cmd": _FLAG, "limit": _NUMBER, "filters": _SHORT}


def _route(
    kind: str, method: str, path: str, query: Mapping[str, RequestCheck] = _NO_QUERY, body: int = 0
) -> MatchedRoute:
    return MatchedRoute(kind=kind, method=method, path=re.compile(path), query=query, largest_body=body)


ROUTES = (
    _route("ping", "GET", "/_ping"),
    _route("ping", "HEAD", "/_ping"),
    _route("version", "GET", "/version"),
    _route("info", "GET", "/info"),
    _route("events", "GET", "/events", {"since": _TIME, "until": _TIME, "filters": _SHORT}),
    _route("list", "GET", "/containers/json", _LIST),
    _route("image", "GET", f"/images/{_IMAGE}/json"),
    _route("network", "GET", _NETWORK, {"verbose": _FLAG, "scope": _SHORT}),
    _route("inspect", "GET", f"{_CONTAINER}/json", {"size": _FLAG}),
    _route("logs", "GET", f"{_CONTAINER}/logs", _LOGS),
    _route("stats", "GET", f"{_CONTAINER}/stats", {"stream": _NO, "one-shot": _FLAG}),
    _route("file", "GET", f"{_CONTAINER}/archive", {"path": _SHORT}),
    _route("file", "HEAD", f"{_CONTAINER}/archive", {"path": _SHORT}),
    _route("create", "POST", "/containers/create", {"name": _NAME, "platform": _fits("[a-z0-9/]*")}, _LARGE),
    _route("start", "POST", f"{_CONTAINER}/start"),
    _route("stop", "POST", f"{_CONTAINER}/stop", {"t": _NUMBER, "signal": _SIGNAL}),
    _route("kill", "POST", f"{_CONTAINER}/kill", {"signal": _SIGNAL}),
    _route("wait", "POST", f"{_CONTAINER}/wait", {"condition": _fits("not-running|next-exit|removed|")}),
    _route("rename", "POST", f"{_CONTAINER}/rename", {"name": _NAME}),
    _route("update", "POST", f"{_CONTAINER}/update", body=_SMALL),
    _route("remove", "DELETE", _CONTAINER, {"force": _FLAG, "v": _FLAG, "link": _NO}),
    _route("connect", "POST", f"{_NETWORK}/connect", body=_SMALL),
    _route("disconnect", "POST", f"{_NETWORK}/disconnect", body=_SMALL),
)


def ask_of(method: str, target: str) -> Ask:
    """Parse `target`, the raw path and query. Raises Refused."""
    if len(target) > LONGEST_TARGET:
        raise Refused("the request's target is too long")
    raw, _, query = target.partition("?")
    path = raw.replace("%40", "@")  # docker-py writes the @ of a digest so
    if not _PLAIN.fullmatch(path):
        raise Refused("the path holds characters or escapes that no request of flettner needs")
    if any(part in ("", ".", "..") for part in path[1:].split("/")):
        raise Refused("the path holds an empty part, `.` or `..`")
    version = _version(path)
    rest = path[len(version) :]
    for route in ROUTES:
        if route.method == method and (match := route.path.fullmatch(rest)):
            subject = match.groupdict().get("subject", "")
            return Ask(route=route, version=version, subject=subject, query=_query(route, query))
    raise Refused("this request is not on the allow-list")


def _version(path: str) -> str:
    match = _VERSION.match(path)
    if not match:
        return ""
    if int(match[1]) < OLDEST_API:
        raise Refused(
            f"API 1.{match[1]} is too old: start bodies mattered then (1.{OLDEST_API} is the least)"
        )
    return match[0]


def _query(route: MatchedRoute, text: str) -> Mapping[str, str]:
    if not text:
        return {}
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=16
        )
    except ValueError:
        raise Refused("the query cannot be read") from None
    given = dict(pairs)
    if len(given) != len(pairs):
        raise Refused("a parameter stands twice in the query")
    for name, value in given.items():
        if name not in route.query:
            raise Refused(f"{route.kind} takes no parameter {name[:40]!r} here")
        if not route.query[name](value):
            raise Refused(f"{route.kind}: {name}={value[:60]!r} is not allowed")
    return given
