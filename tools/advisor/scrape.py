"""A server's load over a window, from its /metrics or from two saved pages."""

import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model import Slo
from flettner.agent.domain.reading import EngineSample, Reading
from flettner.agent.observe import engine_sample
from flettner.agent.observe.aggregator import Aggregator
from flettner.primitives.files import read_bounded, read_file
from flettner.tools.advisor.histograms import series
from flettner.vllm_facts.errors import MetricsPageError
from flettner.vllm_facts.metrics.exposition import parse_labels, pick_samples
from flettner.vllm_facts.metrics.names import HISTOGRAMS
from flettner.vllm_facts.metrics.page_totals import has_restarted, may_be_later
from flettner.vllm_facts.metrics.totals import totals
from flettner.vllm_facts.values import Setting, Value

SERVER = "server"
MAX_BYTES = 8 * 2**20
BEGIN = datetime(2000, 1, 1, tzinfo=UTC)  # only time differences matter
_RUNNING = "vllm:num_requests_running"  # a vLLM server shows it once per engine
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The load of one server. `model`: its served model name, or "" if unknown."""

    reading: Reading
    model: str = ""
    engines: int = 1  # data-parallel engines
    requests: float = 0.0  # ended in the window
    servers: int = 1  # behind the name that was given; one of them was read

    @property
    def idle(self) -> bool:
        reading = self.reading
        tokens = (reading.prompt_tokens_per_s, reading.generation_tokens_per_s)
        refused = reading.health.answered.get("5xx", 0.0) + sum(reading.health.rejected.values())
        moved = self.requests + refused > 0 or any(rate is not None and rate.mean > 0 for rate in tokens)
        return reading.running.high <= 0 and reading.waiting.high <= 0 and not moved


def observe(url: str, seconds: float, slo: Slo) -> Window:
    """Scrape the server for this time. Raises ConfigError if the first scrape fails; later failures are gaps.

    Of several servers behind a name the same server is read each time: their counters differ.
    """
    base, servers = _choose_server(_base(url))
    every_s = max(0.1, min(1.0, seconds / 10))
    aggregator = Aggregator(slo=slo, span_s=seconds, fresh_s=3 * every_s)
    try:
        body = last = _get(f"{base}/metrics")
        before = totals(body)
    except MetricsPageError as error:
        raise ConfigError(f"{base}/metrics: {error}; give the address of a vLLM server") from error
    version, (model, _), ended = _version(base), _identify(body), 0.0
    began_s = before_s = due_s = now_s = time.monotonic()
    while now_s < began_s + seconds:
        due_s = min(max(due_s + every_s, now_s), began_s + seconds)
        time.sleep(max(0.0, due_s - time.monotonic()))
        now_s = time.monotonic()
        try:
            page = _get(f"{base}/metrics")
            after = totals(page)
            sample = engine_sample.sample(
                before,
                after,
                at=BEGIN + timedelta(seconds=now_s - began_s),
                server=SERVER,
                interval_s=now_s - before_s,
                version=version,
            )
        except (MetricsPageError, ConfigError):
            continue  # a gap: the next scrape covers it
        aggregator.add(sample)
        ended += sum(sample.finished.values())
        before, before_s, last = after, now_s, page
    reading = aggregator.reading(SERVER, BEGIN + timedelta(seconds=now_s - began_s))
    if reading is None:
        raise ConfigError(
            f"{base}/metrics answered once, then not for {seconds:g} s; check that the server runs"
        )
    reading = replace(reading, series=series(body, last))
    engines = _identify(last)[1]
    return Window(reading=reading, model=model, engines=engines, requests=ended, servers=servers)


def compare_pages(first: Path, second: Path, seconds: float, slo: Slo) -> Window:
    """Compare two pages, `seconds` apart. The gauges of each page count for half of the window.

    For a server that restarted in between, only the restart is reported.
    """
    bodies = [_read(path) for path in (first, second)]
    read = []
    for path, body in zip((first, second), bodies, strict=True):
        try:
            read.append(totals(body))
        except MetricsPageError as error:
            raise ConfigError(
                f"--scrape {path}: {error}; save it with `curl URL/metrics > {path}`"
            ) from error
    if has_restarted(*read) and not may_be_later(*read):
        raise ConfigError(
            f"--scrape {first} --scrape {second}: the counters decrease between the pages, and the second is "
            "not of a later start of the server: give the older page first"
        )
    end = BEGIN + timedelta(seconds=seconds)
    common: dict[str, Any] = {"server": SERVER, "version": None}
    try:
        start: EngineSample = engine_sample.sample(None, read[0], at=BEGIN, interval_s=0.0, **common)
        full: EngineSample = engine_sample.sample(*read, at=end, interval_s=seconds, **common)
    except MetricsPageError as error:
        raise ConfigError(f"--scrape {second}: {error}; save the whole page") from error
    if not full.restarted and not full.interval_s:
        raise ConfigError(
            f"--scrape {second}: has metrics or engines that {first} lacks, so nothing can be compared; save "
            "both pages while the same engines run"
        )
    halves = (full,) if full.restarted else _split(start, full, seconds)
    aggregator = Aggregator(slo=slo, span_s=seconds, fresh_s=seconds)
    for half in halves:
        aggregator.add(half)
    reading = aggregator.reading(SERVER, end)
    if reading is None:
        raise ConfigError(f"--scrape {second}: contains invalid numbers")
    reading = replace(reading, series=series(*bodies))
    model, engines = _identify(bodies[1])
    return Window(
        reading=reading,
        model=model,
        engines=engines,
        requests=sum(full.finished.values()),
    )


def setting_of(facts: Mapping[str, str]) -> Setting:
    """Return the flags that the server reports in the labels of vllm:cache_config_info."""
    read: dict[str, Value] = {}
    for label, (knob, reader) in _REPORTED.items():
        value = reader(facts.get(label, "None"))
        if value is not None:
            read[knob] = value
    return read


def _split(start: EngineSample, full: EngineSample, seconds: float) -> tuple[EngineSample, EngineSample]:
    counted = (
        *("preemptions", "prompt_tokens", "generation_tokens", "cached_tokens"),
        *("prefix_queries", "prefix_hits", "drafts", "drafted", "accepted"),
    )
    half = {name: getattr(full, name) / 2 for name in counted}
    nothing: dict[str, Any] = dict.fromkeys(HISTOGRAMS)
    late = replace(full, interval_s=seconds / 2, **half)
    early = replace(
        late,
        at=full.at - timedelta(seconds=seconds / 2),
        running=start.running,
        waiting=start.waiting,
        kv_usage=start.kv_usage,
        **nothing,
        finished={},
        answered={},
        rejected={},
        deferred=start.deferred,
        engines=start.engines,
    )
    return early, late


def _base(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        fine = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise ConfigError(f"{url}: not the address of a server; write it as in http://127.0.0.1:8000")
    return (
        f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
        .removesuffix("/metrics")
        .removesuffix("/v1")
    )


def _choose_server(base: str) -> tuple[str, int]:
    """Return the address of the first server behind the name, and how many there are.

    With TLS the name stays, since the certificate is for it. The scrape reports an unknown name.
    """
    parts = urlsplit(base)
    with suppress(OSError):
        infos = socket.getaddrinfo(parts.hostname, parts.port or 80, socket.AF_INET, socket.SOCK_STREAM)
        addresses = sorted({str(info[4][0]) for info in infos})
        if len(addresses) > 1 and parts.scheme == "http":
            port = f":{parts.port}" if parts.port else ""
            return f"http://{addresses[0]}{port}{parts.path}", len(addresses)
        return base, len(addresses)
    return base, 1


def _get(url: str) -> bytes:
    try:
        with urlopen(Request(url, headers={"Accept": "text/plain"}), timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return read_bounded(answer, MAX_BYTES)
    except URLError as error:
        why = getattr(error, "code", None) or getattr(error.reason, "strerror", None) or error.reason
        raise ConfigError(f"{url}: cannot be read: {why}; check that a vLLM server runs there") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{url}: cannot be read: {why}; check that a vLLM server runs there") from error


def _version(base: str) -> str | None:
    try:
        answer = json.loads(_get(f"{base}/version"))
    except (ConfigError, ValueError, RecursionError):
        return None
    version = answer.get("version") if isinstance(answer, dict) else None
    return version if isinstance(version, str) else None


def _identify(body: bytes) -> tuple[str, int]:
    """Return the served model name, or "", and the number of engines of a page that `totals` has read."""
    labels = [parse_labels(inside) for inside, _ in pick_samples(body.decode(), {_RUNNING})[_RUNNING]]
    model = next((of["model_name"] for of in labels if "model_name" in of), "")
    return model, len({of.get("engine", "") for of in labels})


def _read(path: Path) -> bytes:
    try:
        return read_file(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError(
            f"--scrape {path}: cannot be read: {error.strerror}; save one with `curl URL/metrics > {path}`"
        ) from error


def _yes(text: str) -> Value:
    return {"True": True, "False": False}.get(text)


def _number(text: str) -> Value:
    try:
        return float(text)
    except ValueError:
        return None


def _word(text: str) -> Value:
    return None if text in {"None", "auto", ""} else text


_REPORTED: Mapping[str, tuple[str, Callable[[str], Value]]] = {
    "gpu_memory_utilization": ("gpu_memory_utilization", _number),
    "enable_prefix_caching": ("enable_prefix_caching", _yes),
    "cache_dtype": ("kv_cache_dtype", _word),
    "kv_offloading_size": ("kv_offloading_size", _number),
}
