"""Scrapes NVIDIA's DCGM exporter on each node: the GPUs of the target's pods, without Prometheus."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import SplitResult, urlsplit

import aiohttp

from flettner.agent.domain.errors import SensorError
from flettner.agent.domain.ports import Now, View
from flettner.agent.domain.reading import Gpu, GpuSample, Sample
from flettner.agent.plugins.option_errors import check_periods
from flettner.primitives.address import Address
from flettner.primitives.bounded import read_body
from flettner.sensors.dcgm.page import AssignedGpu, parse_page
from flettner.sensors.shared.addresses import resolve
from flettner.sensors.shared.source_reporter import SourceReporter
from flettner.vllm_facts.errors import MetricsPageError

_SOURCE = "dcgm"
_AT_ONCE = 16  # exporters: a large cluster has an exporter on each of hundreds of nodes
_MOST_GPUS = 1024  # of a sample
_SHOWN_PODS = 5


@dataclass(frozen=True, slots=True)
class Dcgm:
    """Replaces `nvidia_smi` if the GPUs are on other hosts than flettner.

    The exporter reads the GPUs every 30 s unless DCGM_EXPORTER_INTERVAL, in ms, sets another interval:
    values can be as old as that interval. It adds the labels `namespace` and `pod` with
    DCGM_EXPORTER_KUBERNETES=true.
    """

    url: str  # `http://HOST:9400/metrics`; each address that the host resolves to is read: a headless Service
    namespace: str = ""  # only GPUs of pods in this namespace; empty: any
    pods: tuple[str, ...] = ()  # prefixes of the names of pods whose GPUs count; empty: all pods
    every_s: float = 5.0
    timeout_s: float = 3.0

    def __post_init__(self) -> None:
        _parse_url(self.url)
        namespace: object = self.namespace
        if not isinstance(namespace, str):
            raise TypeError(f"namespace must be the name of a namespace, not {namespace!r}")
        object.__setattr__(self, "pods", tuple(self.pods))  # TOML has lists
        pods: tuple[object, ...] = self.pods
        if not all(isinstance(pod, str) and pod for pod in pods):
            raise ValueError(f'pods must be beginnings of names such as "vllm-", not {self.pods!r}')
        check_periods(self, "every_s", "timeout_s")

    async def run(self, view: View, emit: Callable[[Sample], None], now: Now) -> None:  # noqa: ARG002  by pod
        reporter = SourceReporter(emit, now)
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            connector=aiohttp.TCPConnector(limit=_AT_ONCE),
            headers={"Accept": "text/plain", "Accept-Encoding": "identity"},
        ) as session:
            exporters = _Exporters(self, session)
            while True:
                try:
                    gpus, why = await exporters.read()
                except SensorError as error:
                    reporter.report(_SOURCE, available=False, why=str(error))
                else:
                    reporter.report(_SOURCE, available=not why, why=why)
                    emit(GpuSample(at=now(), gpus=gpus))
                await asyncio.sleep(self.every_s)  # after a read, so that slow reads leave a pause

    def select(self, assigned: tuple[AssignedGpu, ...]) -> tuple[Gpu, ...]:
        """The GPUs of the wanted pods."""
        if not self.namespace and not self.pods:
            return tuple(entry.gpu for entry in assigned)
        return tuple(entry.gpu for entry in assigned if any(self._wants(*pod) for pod in entry.pods))

    def _wants(self, namespace: str, pod: str) -> bool:
        return self.namespace in {"", namespace} and (not self.pods or pod.startswith(self.pods))


class _Exporters:
    """The exporters behind the URL, and which of them had GPUs of the wanted pods."""

    def __init__(self, options: Dcgm, session: aiohttp.ClientSession) -> None:
        self._options = options
        self._session = session
        self._url = _parse_url(options.url)
        self._with_gpus: frozenset[str] = frozenset()  # addresses

    async def read(self) -> tuple[tuple[Gpu, ...], str]:
        """Return the GPUs, and why GPUs are missing. Raises SensorError without any GPU.

        An exporter may fail if its last answer had no wanted GPU.
        """
        addresses = await self._resolve()
        answers = await asyncio.gather(*map(self._read_exporter, addresses))
        pages = dict(zip(addresses, answers, strict=True))
        errors = {address: page for address, page in pages.items() if isinstance(page, SensorError)}
        read = {address: page for address, page in pages.items() if not isinstance(page, SensorError)}
        if not read:
            raise next(iter(errors.values()))
        gpus = {address: some for address, page in read.items() if (some := self._options.select(page))}
        lost = self._with_gpus & errors.keys()
        self._with_gpus = lost | gpus.keys()
        why = "; ".join(str(errors[address]) for address in sorted(lost))
        chosen = {gpu.uuid: gpu for some in gpus.values() for gpu in some}  # a node may have two addresses
        if not chosen:
            raise SensorError(why or self._explain_none(read))
        if len(chosen) > _MOST_GPUS:
            raise SensorError(
                f"{self._options.url}: {len(chosen)} GPUs, more than {_MOST_GPUS}: set `namespace` and `pods`"
            )
        return tuple(chosen.values()), why

    async def _resolve(self) -> tuple[str, ...]:
        host = self._url.hostname or ""
        try:
            return await resolve(str(Address(host, self._url.port or 80)))
        except (OSError, UnicodeError) as error:
            raise SensorError(
                f"{self._options.url}: {host} does not resolve ({getattr(error, 'strerror', '') or error}):"
                " is the exporter's Service there, and are its pods ready?"
            ) from error

    async def _read_exporter(self, address: str) -> tuple[AssignedGpu, ...] | SensorError:
        """Return the GPUs of the exporter at the address, or the reason why they are unknown."""
        url = f"http://{address}{self._url.path or '/metrics'}"
        try:
            async with self._session.get(url, allow_redirects=False) as answer:
                if answer.status != HTTPStatus.OK:
                    return SensorError(f"{url} answered {answer.status}, not 200: see the exporter's log")
                body = await read_body(answer)
            return await asyncio.to_thread(parse_page, body)  # the largest page takes seconds
        except TimeoutError:
            return SensorError(f"no answer from {url} in {self._options.timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError, MetricsPageError) as error:
            return SensorError(f"{url}: {str(error) or type(error).__name__}")

    def _explain_none(self, pages: Mapping[str, tuple[AssignedGpu, ...]]) -> str:
        """The reason why no GPU belongs to a wanted pod."""
        gpus = [gpu for page in pages.values() for gpu in page]
        pods = sorted({f"{namespace}/{pod}" for gpu in gpus for namespace, pod in gpu.pods})
        read = f"{self._options.url}, {len(pages)} addresses"
        if not pods:
            return (
                f"{read}: {len(gpus)} GPUs, none with a label `pod`: set DCGM_EXPORTER_KUBERNETES=true at the"
                " exporter; only a pod that requests nvidia.com/gpu gets one"
            )
        shown = ", ".join(pods[:_SHOWN_PODS]) + (", ..." if len(pods) > _SHOWN_PODS else "")
        return (
            f"{read}: GPUs of {shown}, none of the wanted pods: check `namespace` and `pods`, and that the"
            " Service is headless (clusterIP: None), else one exporter of many answers"
        )


def _parse_url(url: object) -> SplitResult:
    """Raises ValueError."""
    example = "http://dcgm-exporter.gpu-operator.svc:9400/metrics"
    if not isinstance(url, str) or not url.startswith("http://"):
        raise ValueError(f"url must start with http://, such as {example}, not {url!r}")
    wrong = f"url must be a host, a port and a path, such as {example}, not {url!r}"
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError as error:  # a port above 65535, a bracket without its other
        raise ValueError(wrong) from error
    if not usable or parts.username is not None or parts.query or parts.fragment:
        raise ValueError(wrong)
    return parts


plugin = Dcgm
