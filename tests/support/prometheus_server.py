"""A real Prometheus, and a metrics page for it to scrape, each of which can be killed and started again."""

import http.client
import json
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.ports import free_port

DEADLINE_S = 60.0


@dataclass
class Page:
    """Serves `samples`; every scrape adds 1 to each of `counters`."""

    port: int = field(default_factory=free_port)
    samples: dict[str, str] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    _server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                for name in page.counters:
                    page.counters[name] += 1
                lines = [f"{name} {value}\n" for name, value in (page.samples | page.counters).items()]
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write("".join(lines).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,)).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@dataclass
class RealPrometheus:
    """Scrapes its pages five times a second; looks back 5 minutes, as by default."""

    folder: Path
    pages: tuple[Page, ...]
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it answers queries; the first scrape may take another 5 s."""
        config = self.folder / "prometheus.yml"
        config.write_text(self.config())
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={self.folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--log.level=error",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.until("vector(1)", lambda values: values == [1.0])

    def config(self) -> str:
        targets = ", ".join(f"'127.0.0.1:{page.port}'" for page in self.pages)
        return (
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
            f"scrape_configs: [{{job_name: t, static_configs: [{{targets: [{targets}]}}]}}]\n"
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def values(self, promql: str) -> list[float]:
        """Values of its query API; empty if it does not answer."""
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            try:
                connection.request("GET", "/api/v1/query?" + urllib.parse.urlencode({"query": promql}))
                answer = connection.getresponse()
                if answer.status == 200:
                    return [float(series["value"][1]) for series in json.load(answer)["data"]["result"]]
            finally:
                connection.close()
        return []

    def until(self, promql: str, seen: Callable[[list[float]], bool]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not seen(self.values(promql)):
            assert time.monotonic() < deadline_s, promql
            time.sleep(0.05)


@contextmanager
def real_prometheus(folder: Path, *pages: Page) -> Iterator[RealPrometheus]:
    """Started, with every page started and scraped."""
    prometheus = RealPrometheus(folder, pages)
    try:
        for page in pages:
            page.start()
        prometheus.start()
        if pages:
            prometheus.until("sum(up)", lambda values: values == [len(pages)])
        yield prometheus
    finally:
        prometheus.kill()
        for page in pages:
            page.stop()
