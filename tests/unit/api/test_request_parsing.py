"""Any input yields a status below 500 and, if refused, a problem document."""

import gzip
import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import quote, urlencode
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from flettner.agent.api import request_parsing
from flettner.agent.api.app import OPERATIONS
from flettner.agent.api.idempotency import HEADER
from flettner.agent.api.problems import MEDIA, Problem
from flettner.agent.api.tokens import Tokens
from tests.support.api_tokens import store_roles
from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.sampling import examples
from tests.support.served_api import served

CHANGE = "/v1/targets/chat/suggestions"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """Port and Authorization header of an admin."""
    path: Path = tmp_path_factory.mktemp("api") / "tokens"
    text = store_roles(path)["admin"]
    daemon = FakeDaemonView()
    daemon.suggest({"max_num_seqs": 128})
    with served(daemon, Tokens(path, daemon.now)) as port:
        yield port, f"Bearer {text}"


def send(
    admin: tuple[int, str], method: str, path: str, headers: dict[str, str], body: bytes | None = None
) -> tuple[HTTPResponse, bytes]:
    port, bearer = admin
    key = {HEADER: uuid4().hex} if method == "POST" else {}
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body=body, headers={"Authorization": bearer, **key, **headers})
        response = connection.getresponse()
        stream = response.headers.get_content_type() == "text/event-stream"
        return response, b"" if stream else response.read()
    finally:
        connection.close()


def check(response: HTTPResponse, content: bytes) -> None:
    assert response.status < 500
    if response.status >= 400 and content:
        assert response.headers["Content-Type"].startswith(MEDIA)
        assert Problem.model_validate_json(content).status == response.status
        assert b"fl_" not in content.replace(b"fl_\xe2\x80\xa6", b"")


NAMES = ["target", "status", "limit", "after", "outcome", "digest", "reason", "to", "comment", "max_num_seqs"]
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from([2**63, -(2**64), 1e308, "sha256:" + "0" * 64, "open", "chat", "\ud800", "\x00"])
)  # fmt: skip
KEYS = st.sampled_from(NAMES) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
BODIES = (
    st.none()
    | st.binary(max_size=64)
    | VALUES.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(KEYS, VALUES, max_size=4).map(lambda value: json.dumps(value).encode())
)
PARTS = st.sampled_from(["chat", "chat-s1", "chat-o1", "..", "%00", "%ff", "a%2Fb"]) | st.text(
    min_size=1, max_size=12
).map(lambda text: quote(text, safe="", errors="replace"))
PATHS = st.builds(
    lambda operation, part: operation.path.replace("{name}", part).replace("{id}", part),
    st.sampled_from(OPERATIONS),
    PARTS,
)
QUERIES = st.lists(
    st.tuples(
        KEYS, st.text(max_size=12) | st.integers().map(str) | st.sampled_from(["", "open", "٣", "1e3"])
    ),
    max_size=3,
).map(lambda pairs: urlencode(pairs, errors="replace"))
HEADERS = st.dictionaries(
    st.sampled_from(
        ["Last-Event-ID", "If-None-Match", "Accept", "Content-Encoding", "Sec-Fetch-Site", "Range"]
    ),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20) | st.sampled_from(["gzip", "*"]),
    max_size=2,
)
TYPES = st.sampled_from(
    ["application/json", "application/json; charset=utf-16", "text/plain", "a/b", ";", ""]
)


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]),
    path=PATHS,
    query=QUERIES,
    headers=HEADERS,
    media=TYPES,
    body=BODIES,
)
def test_no_request_causes_an_internal_error(
    admin: tuple[int, str],
    method: str,
    path: str,
    query: str,
    headers: dict[str, str],
    media: str,
    body: bytes | None,
) -> None:
    check(*send(admin, method, f"{path}?{query}", {"Content-Type": media, **headers}, body))


@settings(max_examples=examples(200), deadline=None)
@given(body=BODIES, path=st.sampled_from([op.path for op in OPERATIONS if op.body]))
def test_no_body_causes_an_internal_error(admin: tuple[int, str], path: str, body: bytes | None) -> None:
    path = path.replace("{name}", "chat").replace("{id}", "chat-s1")

    check(*send(admin, "POST", path, JSON, body))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"to": {"max_num_seqs": 1}, "to": {"max_num_seqs": 2}, "reason": "r"}', 400),
        (b'{"to": {"max_num_seqs": NaN}, "reason": "r"}', 400),
        (b'{"to": {"max_num_seqs": 1e999}, "reason": "r"}', 400),
        (b'{"to": {"max_num_seqs": ' + b"9" * 5000 + b'}, "reason": "r"}', 400),
        (b"[" * 60000, 400),
        (b'{"to":' * 9000 + b"1" + b"}" * 9000, 400),
        (b'\xef\xbb\xbf{"reason": "r"}', 400),
        ('{"reason": "r"}'.encode("utf-16"), 400),
        (b'{"to": {"max_num_seqs": 1}, "reason": "\xff"}', 400),
        (b"[]", 422),
        (b"null", 422),
        (b'{"to": {}, "reason": "r"}', 422),
        (b'{"to": {"max_num_seqs": [1]}, "reason": "r"}', 422),
        (b'{"to": {"max_num_seqs": 99999999999999999999}, "reason": "r"}', 422),
        (b'{"to": {"--max-num-seqs": 1}, "reason": "r"}', 422),
        (b'{"to": {"max_num_seqs": "\\ud800"}, "reason": "r"}', 422),
        (b'{"to": {"max_num_seqs": "\\u001b[2J"}, "reason": "r"}', 422),
        (b'{"to": {"max_num_seqs": 1}, "reason": "\\u0000"}', 422),
        (b'{"to": {"max_num_seqs": 1}, "reason": "   "}', 422),
        (b'{"to": {"max_num_seqs": 1}, "reason": 7}', 422),
        (b'{"to": {"max_num_seqs": 1}, "reason": "r", "force": true}', 422),
        (b'{"reason": "' + b"x" * 70000 + b'"}', 413),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else None,
)
def test_refuses_an_invalid_body(admin: tuple[int, str], body: bytes, status: int) -> None:
    response, content = send(admin, "POST", CHANGE, JSON, body)

    check(response, content)
    assert response.status == status


def test_names_every_fault_without_echoing_input(admin: tuple[int, str]) -> None:
    _, content = send(admin, "POST", CHANGE, JSON, b'{"to": {"max_num_seqs": ["s3cret"]}, "reason": 7}')

    problem = Problem.model_validate_json(content)
    assert [fault.at for fault in problem.errors or ()] == ["to.max_num_seqs", "reason"]
    assert b"s3cret" not in content


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "multipart/form-data"},
        {},
        {**JSON, "Content-Encoding": "gzip"},
    ],
    ids=str,
)
def test_accepts_only_plain_json(admin: tuple[int, str], headers: dict[str, str]) -> None:
    body = gzip.compress(b"{}") if "Content-Encoding" in headers else b"{}"

    response, content = send(admin, "POST", CHANGE, headers, body)

    check(response, content)
    assert response.status == 415


def test_405_names_the_allowed_methods(admin: tuple[int, str]) -> None:
    response, content = send(admin, "DELETE", "/v1/targets", {})

    check(response, content)
    assert (response.status, response.headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize(
    "query", ["limit=1&limit=1", "limit=0", "limit=x", "after=-1", "nothing=1", "after=" + "9" * 5000]
)
def test_refuses_an_invalid_query(admin: tuple[int, str], query: str) -> None:
    response, content = send(admin, "GET", f"/v1/audit?{query}", {})

    check(response, content)
    assert response.status == 422


HEAD = "POST /v1/targets/chat/suggestions HTTP/1.1\r\nHost: localhost\r\nAuthorization: {bearer}\r\n"
TYPED = HEAD + "Content-Type: application/json\r\n"
KEYED = TYPED + "Idempotency-Key: first\r\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (TYPED + "Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\nzz\r\n", 400),
        (KEYED + "Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\nzz\r\n", 400),
        (KEYED + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{{}}", 415),
        (TYPED + "Expect: a miracle\r\nContent-Length: 2\r\n\r\n{{}}", 417),
        (TYPED + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{{}}", 100),
        (TYPED + "Transfer-Encoding: chunked\r\n\r\n" + ("2000\r\n" + " " * 0x2000 + "\r\n") * 9, 413),
        (TYPED + "Content-Length: 99999999999\r\n\r\n" + " " * 70000, 413),
        ("GET /healthz HTTP/1.0\r\n\r\n", 421),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        ("GET http://evil.example/healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        ("GET /v1/targets HTTP/1.1\r\nHost: localhost\r\nX: " + "x" * 70000 + "\r\n\r\n", 400),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + "X: x\r\n" * 64 + "\r\n", 400),
        ("\x16\x03\x01\x02\r\n\r\n", 400),
    ],
    ids=[
        "bad chunk", "bad chunk with a key", "no gzip with a key", "expectation", "continue",
        "endless chunks", "endless body", "no host", "two hosts",
        "absolute target", "long header", "many headers", "tls",
    ],
)  # fmt: skip
def test_refuses_malformed_raw_requests(admin: tuple[int, str], text: str, status: int) -> None:
    port, bearer = admin
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(text.format(bearer=bearer).encode())
        answer = connection.recv(65536)

    assert int(answer.split()[1]) == status


@pytest.mark.parametrize("head", [TYPED, KEYED], ids=["no key", "key"])
def test_times_out_on_a_body_that_never_arrives(
    admin: tuple[int, str], monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    monkeypatch.setattr(request_parsing, "BODY_TIMEOUT_S", 0.1)
    port, bearer = admin
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall((head + "Content-Length: 10\r\n\r\n{{").format(bearer=bearer).encode())
        answer = b""
        while part := connection.recv(65536):  # and then it is closed
            answer += part

    assert answer.split()[1] == b"408"


def test_client_disconnect_is_not_an_internal_error(
    admin: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    port, bearer = admin
    with capture_logs() as logged:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            text = TYPED + "Content-Length: 10\r\n\r\n{{}}"
            connection.sendall(text.format(bearer=bearer).encode())
        send(admin, "GET", "/healthz", {})  # the disconnected request is finished by now

    assert logged == []
    assert caplog.records == []
