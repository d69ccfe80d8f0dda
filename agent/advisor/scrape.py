"""A server's load over a window, from its own /metrics or from two saved pages of it."""

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from agent.advisor.histograms import series
from agent.domain.errors import ConfigError
from agent.domain.model import Slo
from agent.domain.reading import EngineSample, Reading
from agent.observe import engine_sample
from agent.observe.aggregator import Aggregator
from vllm_facts.errors import MetricsPageError
from vllm_facts.metrics import totals as scrapes
from vllm_facts.values import Setting, Value

SERVER = "server"
MOST_BYTES = 8 * 2**20
BEGIN = datetime(2000, 1, 1, tzinfo=UTC)  # only differences of time count here
_MODEL = re.compile(rb'^vllm:[^{]*\{[^}]*\bmodel_name="([^"\\]{1,200})"', re.MULTILINE)
_ENGINE = re.compile(rb'^vllm:num_requests_running\{[^}\n]{0,500}?\bengine="(\d{1,6})"', re.MULTILINE)
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was seen of one server. `model`: the name that it serves under, or "" where the page has none."""

    reading: Reading
    model: str = ""
    engines: int = 1  # data-parallel ones, that its page counts one by one
    requests: float = 0.0  # that ended in the window

    @property
    def idle(self) -> bool:
        reading = self.reading
        tokens = (reading.prompt_tokens_per_s, reading.generation_tokens_per_s)
        moved = self.requests > 0 or any(rate is not None and rate.mean > 0 for rate in tokens)
        return reading.running.high <= 0 and reading.waiting.high <= 0 and not moved


def watched(url: str, seconds: float, slo: Slo) -> Window:
    """Scrape the server for so long. ConfigError when it cannot be; a scrape that fails later is a gap."""
    base = _base(url)
    every_s = max(0.1, min(1.0, seconds / 10))
    fold = Aggregator(slo=slo, span_s=seconds, fresh_s=3 * every_s)
    try:
        body = last = _get(f"{base}/metrics")
        before = scrapes.totals(body)
    except MetricsPageError as error:
        raise ConfigError(f"{base}/metrics: {error}; give the address of a vLLM server") from error
    version, model, ended = _version(base), _model(body), 0.0
    began_s = before_s = due_s = now_s = time.monotonic()
    while now_s < began_s + seconds:
        due_s = min(max(due_s + every_s, now_s), began_s + seconds)
        time.sleep(max(0.0, due_s - time.monotonic()))
        now_s = time.monotonic()
        try:
            page = _get(f"{base}/metrics")
            after = scrapes.totals(page)
            one = engine_sample.sample(
                before,
                after,
                at=BEGIN + timedelta(seconds=now_s - began_s),
                server=SERVER,
                interval_s=now_s - before_s,
                version=version,
            )
        except (MetricsPageError, ConfigError):
            continue  # a gap: the next scrape tells what was counted meanwhile
        fold.add(one)
        ended += sum(one.finished.values())
        before, before_s, last = after, now_s, page
    reading = fold.reading(SERVER, BEGIN + timedelta(seconds=now_s - began_s))
    if reading is None:
        raise ConfigError(
            f"{base}/metrics answered once, and then not for {seconds:g} s; is the server alive?"
        )
    reading = replace(reading, series=series(body, last))
    return Window(reading=reading, model=model, engines=_engines(last), requests=ended)


def saved(first: Path, second: Path, seconds: float, slo: Slo) -> Window:
    """Two pages of one process, `seconds` apart. Each page's gauges stand for half of the window."""
    bodies = [_read(path) for path in (first, second)]
    pages = []
    for path, body in zip((first, second), bodies, strict=True):
        try:
            pages.append(scrapes.totals(body))
        except MetricsPageError as error:
            raise ConfigError(
                f"--scrape {path}: {error}; save it with `curl URL/metrics > {path}`"
            ) from error
    if scrapes.has_restarted(*pages):
        raise ConfigError(
            f"--scrape {first} --scrape {second}: the counts fall from one to the other: give the older "
            "page first, both of one run of the server"
        )
    end = BEGIN + timedelta(seconds=seconds)
    common: dict[str, Any] = {"server": SERVER, "version": None}
    try:
        then: EngineSample = engine_sample.sample(None, pages[0], at=BEGIN, interval_s=0.0, **common)
        whole: EngineSample = engine_sample.sample(*pages, at=end, interval_s=seconds, **common)
    except MetricsPageError as error:
        raise ConfigError(f"--scrape {second}: {error}; save the whole page") from error
    halves = _halves(then, whole, seconds)
    fold = Aggregator(slo=slo, span_s=seconds, fresh_s=seconds)
    for half in halves:
        fold.add(half)
    reading = fold.reading(SERVER, end)
    if reading is None:
        raise ConfigError(f"--scrape {second}: holds numbers that cannot be counted with")
    reading = replace(reading, series=series(*bodies))
    return Window(
        reading=reading,
        model=_model(bodies[1]),
        engines=_engines(bodies[1]),
        requests=sum(whole.finished.values()),
    )


def setting_of(facts: Mapping[str, str]) -> Setting:
    """The flags that the server tells of itself: in the labels of vllm:cache_config_info."""
    read: dict[str, Value] = {}
    for label, (knob, reader) in _TOLD.items():
        value = reader(facts.get(label, "None"))
        if value is not None:
            read[knob] = value
    return read


def _halves(then: EngineSample, whole: EngineSample, seconds: float) -> tuple[EngineSample, EngineSample]:
    counted = ("preemptions", "prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits")
    half = {name: getattr(whole, name) / 2 for name in counted}
    late = replace(whole, interval_s=seconds / 2, **half)
    early = replace(
        late,
        at=whole.at - timedelta(seconds=seconds / 2),
        running=then.running,
        waiting=then.waiting,
        kv_usage=then.kv_usage,
        ttft=None,
        itl=None,
        e2e=None,
        finished={},
    )
    return early, late


def _base(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        fine = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise ConfigError(f"{url}: is no address of a server; write it as in http://127.0.0.1:8000")
    return (
        f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
        .removesuffix("/metrics")
        .removesuffix("/v1")
    )


def _get(url: str) -> bytes:
    try:
        with urlopen(Request(url, headers={"Accept": "text/plain"}), timeout=_TIMEOUT_S) as answer:  # noqa: S310
            body: bytes = answer.read(MOST_BYTES + 1)
    except URLError as error:
        why = getattr(error, "code", None) or getattr(error.reason, "strerror", None) or error.reason
        raise ConfigError(f"{url}: cannot be read: {why}; is this a vLLM server, and up?") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{url}: cannot be read: {error}; is this a vLLM server, and up?") from error
    if len(body) > MOST_BYTES:
        raise ConfigError(f"{url}: the answer is larger than {MOST_BYTES >> 20} MiB")
    return body


def _version(base: str) -> str | None:
    try:
        answer = json.loads(_get(f"{base}/version"))
    except (ConfigError, ValueError, RecursionError):
        return None
    version = answer.get("version") if isinstance(answer, dict) else None
    return version if isinstance(version, str) else None


def _model(body: bytes) -> str:
    found = _MODEL.search(body)
    return found[1].decode("utf-8", "replace") if found else ""


def _engines(body: bytes) -> int:
    return max(1, len(set(_ENGINE.findall(body))))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            body = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"--scrape {path}: cannot be read: {error.strerror}; save one with `curl URL/metrics > {path}`"
        ) from error
    if len(body) > MOST_BYTES:
        raise ConfigError(f"--scrape {path}: is larger than {MOST_BYTES >> 20} MiB: no page of a vLLM server")
    return body


def _yes(text: str) -> Value:
    return {"True": True, "False": False}.get(text)


def _number(text: str) -> Value:
    try:
        return float(text)
    except ValueError:
        return None


def _word(text: str) -> Value:
    return None if text in {"None", "auto", ""} else text


_TOLD: Mapping[str, tuple[str, Callable[[str], Value]]] = {
    "gpu_memory_utilization": ("gpu_memory_utilization", _number),
    "enable_prefix_caching": ("enable_prefix_caching", _yes),
    "cache_dtype": ("kv_cache_dtype", _word),
    "kv_offloading_size": ("kv_offloading_size", _number),
}
