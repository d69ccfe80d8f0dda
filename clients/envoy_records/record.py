"""The two logs that Envoy writes for each target, their fields, and the socket that receives them.

Log `us` has a record for each attempt of a request at a server, so that retries do not hide failures. Log
`ds` has one for each request, and more while it runs. A message is `[TARGET/LOG, [[seconds, fields], ...]]`.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

MESSAGE_BYTES: Final = 16 << 20
"""The largest message that a reader takes."""

ATTEMPTS: Final = "us"
REQUESTS: Final = "ds"
ENDED: Final = "DownstreamEnd"
"""`Field.TYPE` of a request's last record."""


class Field(StrEnum):
    """The keys of a record. The Lua filter sets those of `NOTED`, from a request and its answer."""

    ID = "id"
    SERVER = "server"  # Envoy's cluster; see `cluster_name`
    PATH = "path"
    CODE = "code"
    FLAGS = "flags"
    ATTEMPT = "attempt"  # its number, from 1
    ATTEMPTS = "attempts"  # so far
    TYPE = "type"
    TTFT_US = "ttft_us"
    DURATION_MS = "duration_ms"
    WAITED_MS = "waited_ms"  # before it was sent to a server
    REQUEST_BYTES = "request_bytes"  # of the body
    STREAM = "stream"  # the client asked for a stream
    EVENTS = "events"  # the answer is an event stream
    TOKENS = "tokens"
    DONE = "done"  # the stream ended with [DONE]
    ERROR = "error"  # the stream contained an error
    ABORTED = "aborted"
    UNKNOWN_MODEL = "unknown_model"  # the name in the server's answer that it does not serve it
    CLIENT = "client"  # buckets of its address, key and session: "17.3.-"


NOTED: Final = (
    Field.STREAM,
    Field.EVENTS,
    Field.TOKENS,
    Field.DONE,
    Field.ERROR,
    Field.ABORTED,
    Field.UNKNOWN_MODEL,
)

UNIQUE_ID: Final = "%CONNECTION_ID%-%START_TIME(%s.%9f)%"
"""Envoy's format of `Field.ID`; `%STREAM_ID%` is the x-request-id that clients choose."""

_RECORD: Final[Mapping[str, str]] = {
    Field.SERVER: "%UPSTREAM_CLUSTER%",
    Field.PATH: "%REQ(:PATH)%",
    Field.CODE: "%RESPONSE_CODE%",
    Field.FLAGS: "%RESPONSE_FLAGS%",
    Field.TTFT_US: "%COMMON_DURATION(US_TX_BEG:US_RX_BODY_BEG:us)%",
    Field.DURATION_MS: "%DURATION%",
}


def format_attempts(id_header: str, client_header: str) -> dict[str, str]:
    """Envoy's format of log `us`. `id_header`: the header that carries the request's id to this log.

    `client_header`: the header in which the Lua filter notes the client.
    """
    return {
        **_RECORD,
        Field.CLIENT: f"%REQ({client_header.upper()})%",
        Field.ID: f"%REQ({id_header.upper()})%",
        Field.ATTEMPT: "%REQ(X-ENVOY-ATTEMPT-COUNT)%",
    }


def format_requests(namespace: str, client_header: str) -> dict[str, str]:
    """Envoy's format of log `ds`. `namespace`: of the metadata that the Lua filter sets."""
    return {
        **_RECORD,
        Field.CLIENT: f"%REQ({client_header.upper()})%",
        Field.ID: UNIQUE_ID,
        Field.ATTEMPTS: "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        Field.TYPE: "%ACCESS_LOG_TYPE%",
        Field.REQUEST_BYTES: "%BYTES_RECEIVED%",
        Field.WAITED_MS: "%COMMON_DURATION(DS_RX_BEG:US_TX_BEG:ms)%",
        **{name: f"%DYNAMIC_METADATA({namespace}:{name})%" for name in NOTED},
    }


def envoy_home(state_dir: Path) -> Path:
    """Return the folder of the Envoy of all targets. `state_dir`: of one target."""
    return state_dir.absolute().parent / "envoy"


def records_socket(home: Path) -> Path:
    """Return the unix socket to which the Envoy of this folder writes."""
    return home / "records.sock"


def tag_of(target: str, log: str) -> str:
    return f"{target}/{log}"


def split_tag(tag: str) -> tuple[str, str]:
    """Return the target and the log."""
    target, _, log = tag.partition("/")
    return target, log


def cluster_name(target: str, server: str) -> str:
    """Return a name with the target in it: two targets may have servers of one name."""
    return f"{target}/{server}"


def server_of_cluster(name: str) -> str:
    return name.rpartition("/")[2]
