"""Scrapes /metrics of each vLLM server: load, cache and latency, second by second."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import NoReturn
from zlib import crc32

import aiohttp
import structlog

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.ports import Now, View
from flettner.agent.domain.reading import EngineSample, Sample
from flettner.agent.observe.engine_sample import sample
from flettner.agent.observe.plausibility import find_nonsense, highest_setting
from flettner.agent.plugins.option_errors import check_periods
from flettner.primitives.bounded import MOST_BYTES, parse_json, read_body
from flettner.sensors.shared.addresses import resolve
from flettner.sensors.shared.source_reporter import SourceReporter
from flettner.sensors.vllm_metrics.replicas import add_up
from flettner.vllm_facts.errors import MetricsPageError
from flettner.vllm_facts.metrics.page_totals import PageTotals, has_restarted
from flettner.vllm_facts.metrics.totals import PageReader

LARGE = 256 * 1024  # bytes: five data-parallel ranks; a smaller page takes the event loop some milliseconds
CPU_SHARE = 0.02
"""Of one core, for the large pages of one server."""

_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics-page")
"""For all servers, so that at most one thread competes with the event loop for the interpreter."""


class PageParser:
    """`cpu_s`: the CPU time of the large pages of the last scrape."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._reader = PageReader()

    @property
    def pause_s(self) -> float:
        """The least time between this scrape and the next scrape."""
        return self.cpu_s / CPU_SHARE

    async def parse(self, body: bytes) -> PageTotals:
        """Parse a page. Raises MetricsPageError."""
        if len(body) <= LARGE:
            return self._reader.totals(body)
        return await asyncio.get_running_loop().run_in_executor(_THREAD, self._parse_measured, body)

    def _parse_measured(self, body: bytes) -> PageTotals:
        began = time.thread_time()
        try:
            return self._reader.totals(body)
        finally:
            self.cpu_s += time.thread_time() - began


log = structlog.get_logger(__name__)

_MAX_VERSION_BYTES = 4096
_VERSION_TRIES = 3  # attempts per process until it answers


@dataclass(frozen=True, slots=True)
class VllmMetrics:
    """Scrapes every server each `every_s` seconds, spread over that interval, within `timeout_s` each."""

    every_s: float = 1.0
    timeout_s: float = 3.0

    def __post_init__(self) -> None:
        check_periods(self, "every_s", "timeout_s")

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self.timeout_s),
                connector=aiohttp.TCPConnector(limit=0),
                headers={"Accept": "text/plain", "Accept-Encoding": "identity"},
            ) as session,
            asyncio.TaskGroup() as scrapes,
        ):
            watched: dict[tuple[str, str], asyncio.Task[NoReturn]] = {}
            while True:
                servers = dict.fromkeys(
                    (server.name, server.address) for server in view.servers() if server.address
                )
                for gone in watched.keys() - servers.keys():
                    watched.pop(gone).cancel()
                for name, address in (key for key in servers if key not in watched):
                    source = _Source(name, address, session, view, emit, now)
                    watched[name, address] = scrapes.create_task(
                        source.follow(self.every_s), name=f"scrape {name}"
                    )
                await asyncio.sleep(self.every_s)


class _Source:
    """The last page of a server, and whether it answers. Its address may name several replicas."""

    def __init__(
        self,
        server: str,
        address: str,
        session: aiohttp.ClientSession,
        view: View,
        emit: Callable[[Sample], None],
        now: Now,
    ) -> None:
        self._server = server
        self._address = address
        self._replicas: tuple[str, ...] = ()  # those that answered last
        self._session = session
        self._view = view
        self._emit = emit
        self._now = now
        self._parser = PageParser()
        self._slowed = False  # whether that was reported
        self._reporter = SourceReporter(emit, now)
        self._before: PageTotals | None = None  # the last page that could be true
        self._is_base = False  # whether no page was refused since
        self._before_s = 0.0  # loop time
        self._version: str | None = None
        self._version_tries = _VERSION_TRIES

    async def follow(self, every_s: float) -> NoReturn:
        """Scrape at once, then at the server's own share of each interval, so that servers take turns."""
        clock = asyncio.get_running_loop().time
        due_s = clock() - every_s * crc32(self._server.encode()) / 2**32
        while True:
            await self._scrape(clock)
            self._report_slowed(every_s)
            due_s = max(due_s + max(every_s, self._parser.pause_s), clock())
            await asyncio.sleep(due_s - clock())

    async def _scrape(self, clock: Callable[[], float]) -> None:
        self._parser.cpu_s = 0.0
        try:
            pages = await self._get_pages()
            after = add_up({replica: await self._parser.parse(page) for replica, page in pages.items()})
            at, at_s = self._now(), clock()
            if self._replicas != (answered := tuple(pages)):  # a changed number of replicas is no restart
                self._before, self._replicas = None, answered
            if self._before is None or has_restarted(self._before, after):
                self._version, self._version_tries = None, _VERSION_TRIES
            if self._version_tries:
                await self._get_version()
            is_base, self._is_base = self._is_base, False  # until this page is found plausible
            current = sample(
                self._before,
                after,
                at=at,
                server=self._server,
                interval_s=at_s - self._before_s,
                version=self._version,
                is_base=is_base,
            )
            self._refuse_nonsense(current)
        except TimeoutError:
            self._report_lost(f"no answer from {self._url}/metrics in time")
        except (aiohttp.ClientError, OSError, SensorError, MetricsPageError) as error:
            why = f"{self._url}/metrics: {str(error) or type(error).__name__}"
            self._report_lost(why, answers=isinstance(error, MetricsPageError))
        else:
            self._before, self._before_s, self._is_base = after, at_s, True
            self._report(available=True)
            self._emit(current)

    def _refuse_nonsense(self, sample: EngineSample) -> None:
        """Raise MetricsPageError for an implausible page, which is no base for the next page."""
        server = next((server for server in self._view.servers() if server.name == self._server), None)
        if server is not None and (why := find_nonsense(sample, highest_setting(server))):
            raise MetricsPageError(f"the metrics are not plausible: {why}")

    @property
    def _url(self) -> str:
        return f"http://{self._address}"

    async def _get_pages(self) -> dict[str, bytes]:
        """Get the page of each replica that answers, by address. Raises the first error if none does."""
        replicas = await resolve(self._address)
        if len(replicas) == 1:
            return {replicas[0]: await self._get(replicas[0], "/metrics", MOST_BYTES)}
        requests = (self._get(replica, "/metrics", MOST_BYTES) for replica in replicas)
        answers = await asyncio.gather(*requests, return_exceptions=True)
        pages = {
            replica: page for replica, page in zip(replicas, answers, strict=True) if isinstance(page, bytes)
        }
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        if not pages and errors:
            raise errors[0]
        return pages

    async def _get(self, address: str, path: str, at_most: int) -> bytes:
        """Get the body. Raises SensorError if the status is not 200 or it is larger than `at_most` bytes."""
        async with self._session.get(f"http://{address}{path}", allow_redirects=False) as answer:
            if answer.status != HTTPStatus.OK:
                raise SensorError(f"answered {answer.status}, not 200")
            try:
                return await read_body(answer, at_most)
            except ValueError as error:
                raise SensorError(str(error)) from error

    async def _get_version(self) -> None:
        """Get the version once for each process; repeat only a request without an answer."""
        try:
            body = await self._get(self._replicas[0], "/version", _MAX_VERSION_BYTES)
        except (TimeoutError, aiohttp.ClientError):
            self._version_tries -= 1
        except SensorError:
            self._version_tries = 0
        else:
            self._version, self._version_tries = _parse_version(body), 0

    def _report_slowed(self, every_s: float) -> None:
        """Log once that the page is so expensive that it is read less often."""
        pause_s = self._parser.pause_s
        if pause_s > every_s and not self._slowed:
            self._slowed = True
            log.warning(
                "vllm_metrics.slowed",
                server=self._server,
                why=f"{self._url}/metrics takes {self._parser.cpu_s:.2f} s of CPU: the next read is in"
                f" {pause_s:.0f} s, not {every_s:g} s",
            )

    def _report_lost(self, why: str, *, answers: bool = False) -> None:
        expected = any(server.name == self._server for server in self._view.servers())
        if expected:  # a retired server is not lost
            self._report(available=False, why=why, answers=answers)

    def _report(self, *, available: bool, why: str = "", answers: bool = False) -> None:
        source = f"vllm_metrics {self._server}"
        self._reporter.report(source, available=available, why=why, answers=answers, server=self._server)


def _parse_version(body: bytes) -> str | None:
    try:
        answer = parse_json(body)
    except ValueError:
        return None
    version = answer.get("version") if isinstance(answer, dict) else None
    return version if isinstance(version, str) else None


plugin = VllmMetrics
