"""Parses the pages of one server: large ones in a thread, so that the event loop runs meanwhile."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from flettner.vllm_facts.metrics.page_totals import PageTotals
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
        """The least time between this scrape and the next one."""
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
