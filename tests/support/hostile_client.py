"""A client that sends requests nobody should send: `python -m tests.support.hostile_client HOST:PORT N KIND`.

With the kind `hostile` it sends N requests of `KINDS` by turns, with `ordinary` N that any client may send.
It prints how many of each were answered or cut.
"""

import asyncio
import itertools
import json
import os
import struct
import sys
from collections import Counter
from collections.abc import Callable, Mapping

Build = Callable[[int], bytes]
"""The bytes of one request; the size is that of its hostile part."""

AT_ONCE = 16  # open connections
ANSWERED_WITHIN_S = 2.0

_HOST = b"Host: model\r\n"
_JSON = b"Content-Type: application/json\r\n"


def _get(path: bytes, headers: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + _HOST + headers + b"Connection: close\r\n\r\n"


def post(body: bytes, headers: bytes = b"") -> bytes:
    """A request of one piece, with the media type that the proxy reads."""
    head = b"POST /v1/completions HTTP/1.1\r\n" + _HOST + _JSON + headers
    return head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def _chunked(chunk: bytes, size: int) -> bytes:
    head = (
        b"POST /v1/completions HTTP/1.1\r\n"
        + _HOST
        + _JSON
        + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return head + chunk * (size // len(chunk)) + b"0\r\n\r\n"


def _filled(pattern: bytes, size: int) -> bytes:
    return (pattern * (size // len(pattern) + 1))[:size]


PATHS: dict[str, Build] = {
    "path of letters": lambda size: _get(b"/" + b"a" * size + b"/b"),
    "path of slashes": lambda size: _get(b"/" * size + b"b"),
    "slashes at the end": lambda size: _get(b"/b" + b"/" * size),
    "path of escapes": lambda size: _get(b"/" + _filled(b"%2f", size) + b"b"),
    "path of parents": lambda size: _get(_filled(b"/..", size) + b"/sleep"),
    "query of questions": lambda size: _get(b"/v1/models" + b"?" * size),
}
"""Of up to 4 KB, which the proxy accepts."""

HEADERS: dict[str, Build] = {
    "large header": lambda size: _get(b"/v1/models", b"X-A: " + b"a" * size + b"\r\n"),
    "long session": lambda size: _get(b"/v1/models", b"X-Session-Id: " + b"a" * size + b"\r\n"),
    "many headers": lambda size: _get(
        b"/v1/models", b"".join(b"X-%d: a\r\n" % n for n in range(size // 256))
    ),
    "many cookies": lambda size: _get(b"/v1/models", b"Cookie: " + _filled(b"a=b; ", size) + b"\r\n"),
    "forwarded by many": lambda size: _get(
        b"/v1/models", b"X-Forwarded-For: " + _filled(b"1.1.1.1, ", size) + b"1.1.1.1\r\n"
    ),
}
"""Of up to 20 KB."""

BODIES: dict[str, Build] = {
    "body of streams": lambda size: post(_filled(b'"stream"', size)),
    "body of spaces": lambda size: post(b'{"stream"' + b" " * size + b": 1}"),
    "body of spaced streams": lambda size: post(_filled(b'"stream"   :   ', size)),
    "body of brackets": lambda size: post(_filled(b'{"a":[', size)),
    "crumbs": lambda size: _chunked(b"1\r\na\r\n", size),
    "chunk extensions": lambda size: _chunked(b"1;" + b"e" * 500 + b"\r\na\r\n", size),
}
"""Of any size."""

BROKEN: dict[str, Build] = {
    "path beyond the limit": lambda _: _get(b"/" * 30_000 + b"b"),
    "headers beyond the limit": lambda _: _get(b"/v1/models", b"X-A: " + b"a" * 100_000 + b"\r\n"),
    "two lengths": lambda _: post(b"{}", b"Content-Length: 5\r\n"),
    "length and chunks": lambda _: post(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\n"),
    "body cut short": lambda _: post(b"{" + b" " * 50_000)[:-20_000],
    "no HTTP": lambda _: os.urandom(2000),
    "bad chunk": lambda _: _chunked(b"zz\r\na\r\n", 1000),
}


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """RFC 9113, section 4.1."""
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _CONTINUATION = 0, 1, 3, 4, 6, 9
_END_STREAM, _END_HEADERS = 1, 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0)
_GET = b"\x82\x86\x84\x41\x05model"  # RFC 7541: GET, http, /, :authority model
_POST = b"\x83\x86\x84\x41\x05model\x0f\x10\x10application/json"


def _resets(size: int) -> bytes:
    streams = range(1, size // 16, 2)
    cancel = struct.pack("!I", 8)
    return _PREFACE + b"".join(
        _frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, _GET) + _frame(_RESET, 0, stream, cancel)
        for stream in streams
    )


HTTP2: dict[str, Build] = {
    "resets": _resets,
    "pings": lambda size: _PREFACE + _frame(_PING, 0, 0, b"12345678") * (size // 17),
    "settings": lambda size: _PREFACE + _frame(_SETTINGS, 0, 0) * (size // 9),
    "continuations": lambda size: (
        _PREFACE
        + _frame(_HEADERS, _END_STREAM, 1, _GET)
        + _frame(_CONTINUATION, 0, 1, b"\x00\x03x-a\x03aaa" * 100) * (size // 909)
    ),
    "crumbs of data": lambda size: (
        _PREFACE
        + _frame(_HEADERS, _END_HEADERS, 1, _POST)
        + _frame(_DATA, 0, 1, b"a") * (size // 10)
        + _frame(_DATA, _END_STREAM, 1)
    ),
    "empty data": lambda size: (
        _PREFACE + _frame(_HEADERS, _END_HEADERS, 1, _POST) + _frame(_DATA, 0, 1) * (size // 9)
    ),
}

KINDS: dict[str, bytes] = {
    **{name: build(3900) for name, build in PATHS.items()},
    **{name: build(20_000) for name, build in HEADERS.items()},
    **{name: build(100_000) for name, build in BODIES.items()},
    **{name: build(0) for name, build in BROKEN.items()},
    **{name: build(20_000) for name, build in HTTP2.items()},
}


async def send(host: str, port: int, request: bytes) -> str:
    """The status line's code; or how it ended without one."""
    try:
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request)
                answer = await reader.read(65_536)
                if answer.startswith(b"HTTP/1.1 "):
                    while await reader.read(65_536):
                        pass
            finally:
                writer.transport.abort()
    except TimeoutError:
        return "silent"
    except OSError:
        return "cut"
    return answer[9:12].decode() if answer.startswith(b"HTTP/1.1 ") else "other" if answer else "closed"


ORDINARY = {"ordinary": post(b'{"prompt": "' + b"a" * 2000 + b'"}')}


async def attack(
    host: str, port: int, requests: int, kinds: Mapping[str, bytes]
) -> dict[str, dict[str, int]]:
    """Send them all. Returns the endings of each kind."""
    endings: dict[str, Counter[str]] = {name: Counter() for name in kinds}
    turns = itertools.islice(itertools.cycle(kinds.items()), requests)

    async def work() -> None:
        for name, request in turns:
            endings[name][await send(host, port, request)] += 1

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return {name: dict(counts) for name, counts in endings.items()}


if __name__ == "__main__":
    os.nice(10)  # beside the proxy, which is measured
    address, number, kind = sys.argv[1:]
    at, _, digits = address.rpartition(":")
    chosen = KINDS if kind == "hostile" else ORDINARY
    sys.stdout.write(json.dumps(asyncio.run(attack(at, int(digits), int(number), chosen))))
