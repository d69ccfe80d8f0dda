"""A server that was not started by the test's run of `flettner tune`."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def unused_server() -> Iterator[str]:
    """Its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Healthy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield str(server.server_address[1])
        server.shutdown()
        thread.join()
