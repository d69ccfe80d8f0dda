"""A client of the daemon's API: one request, one JSON response."""

import http.client
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from flettner.agent.domain.errors import ConfigError, FlettnerError
from flettner.primitives.address import UNIX
from flettner.primitives.files import read_file

SOCKET = f"{UNIX}/run/flettner/api.sock"  # as flettner.agent.config.listen has it, which takes long to load
LOOPBACK = "http://127.0.0.1:8090"
PATIENCE_S = 30.0  # an approval waits for the journal's fsync, no request waits for a server
MAX_TOKEN = 4096  # bytes of a token file
ANSWER_LIMIT = 64 * 1024 * 1024  # bytes

Json = dict[str, Any]


class UnreachableError(FlettnerError):
    """No flettner daemon answers; the message states what to check."""


class RefusedError(Exception):
    """The daemon refused the request. `problem` is its problem document (RFC 9457)."""

    def __init__(self, problem: Json) -> None:
        super().__init__(str(problem.get("detail") or problem.get("title") or "refused without a reason"))
        self.problem = problem


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(frozen=True, slots=True)
class ApiClient:
    url: str
    token: str | None = None
    patience_s: float = PATIENCE_S

    def get(self, path: str) -> Json:
        return self._ask("GET", path, None)

    def get_text(self, path: str) -> str:
        status, content = self._send("GET", path, None)
        if status != http.HTTPStatus.OK:
            self._answer(status, content)
        return content.decode()

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Json:
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None) -> Json:
        """Raises RefusedError with the daemon's problem document, UnreachableError, or ConfigError."""
        return self._answer(*self._send(method, path, body))

    def _send(self, method: str, path: str, body: Mapping[str, object] | None) -> tuple[int, bytes]:
        headers = {"Accept": "application/json"}
        if method == "POST":
            headers["Idempotency-Key"] = uuid4().hex
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection, base = self._connection()
        try:
            connection.request(method, base + path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read(ANSWER_LIMIT)
        except (OSError, http.client.HTTPException) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or repr(error)
            raise UnreachableError(
                f"no daemon answers at {self.url}: {reason}; is it running (`flettner run -c FILE`), and is"
                " this its [api] listen? Name another address with --url or FLETTNER_URL"
            ) from error
        finally:
            connection.close()
        return response.status, content

    def _answer(self, status: int, content: bytes) -> Json:
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        good = status < http.HTTPStatus.MULTIPLE_CHOICES
        if not isinstance(answer, dict) or (not good and "status" not in answer):
            raise UnreachableError(
                f"{self.url} answers (status {status}), but not as flettner's API does;"
                " check --url and FLETTNER_URL"
            )
        if not good:
            raise RefusedError(answer)
        return answer

    def _connection(self) -> tuple[http.client.HTTPConnection, str]:
        if self.url.startswith(UNIX):
            return _UnixConnection(self.url.removeprefix(UNIX), self.patience_s), ""
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in {"http", "https"} or not host:
            raise ConfigError(
                f"--url {self.url!r} is not an address; write {LOOPBACK}, https://host:port or unix:/path"
            )
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(host, port, timeout=self.patience_s), parts.path.rstrip("/")


def find_default_url() -> str:
    """The daemon's socket if it exists, even if it is not accessible; else the loopback port."""
    try:
        Path(SOCKET.removeprefix(UNIX)).stat()
    except PermissionError:
        return SOCKET
    except OSError:
        return LOOPBACK
    return SOCKET


def connect(url: str | None, token_file: str | None) -> ApiClient:
    """A client from the options, else the environment. Raises ConfigError if the token cannot be read."""
    found_url = url or os.environ.get("FLETTNER_URL") or find_default_url()
    path = token_file
    if path is None:
        token = os.environ.get("FLETTNER_TOKEN", "").strip()
        if token:
            return ApiClient(found_url, _plain(token, "FLETTNER_TOKEN"))
        path = os.environ.get("FLETTNER_TOKEN_FILE")
    if not path:
        return ApiClient(found_url)
    try:
        text = read_file(Path(path), MAX_TOKEN).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not text"
        raise ConfigError(f"the token file {path} cannot be read: {why}") from error
    return ApiClient(found_url, _plain(text, path))


def _plain(token: str, where: str) -> str:
    if not (token.isascii() and token.isprintable()) or " " in token or not token:
        raise ConfigError(f"{where} holds no token; it must hold the line that `flettner token new` printed")
    return token
