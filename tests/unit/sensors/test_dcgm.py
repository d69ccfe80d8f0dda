"""The sensor `dcgm` against servers that answer as exporters do."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from flettner.agent.domain.reading import GpuSample
from flettner.sensors.dcgm import plugin
from flettner.sensors.dcgm.plugin import Dcgm
from tests.unit.sensors.dcgm_pages import H100, labels, page
from tests.unit.sensors.pages import NOT_THERE, PAGE, PageServer, answer, page_server
from tests.unit.sensors.run_sensor import NOON, ReceivedSamples, run_sensor

MINE = page((labels(0, pod="vllm-7d9f-a"), H100), (labels(1, pod="embed-0"), H100), (labels(2), H100))
OTHER_NODE = page((labels(0, pod="flettner-chat-r1-b", node="gpu-2"), H100))
NOT_MINE = page((labels(0, pod="vllm-7d9f-a", namespace="other", node="gpu-3"), H100))
NAME = "http://dcgm-exporter.gpu-operator.svc:9400/metrics"


def quick(address: str, *, timeout_s: float = 20.0, namespace: str = "", pods: tuple[str, ...] = ()) -> Dcgm:
    url = f"http://{address}/metrics"
    return Dcgm(url=url, namespace=namespace, pods=pods, every_s=0.02, timeout_s=timeout_s)


def uuids(received: ReceivedSamples) -> list[str]:
    return [gpu.uuid for gpu in received.of(GpuSample)[-1].gpus]


@asynccontextmanager
async def exporters(
    monkeypatch: pytest.MonkeyPatch, *bodies: bytes
) -> AsyncIterator[tuple[list[PageServer], list[str]]]:
    """Servers behind one name, and the addresses that it has."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(page_server(body)) for body in bodies]
        addresses = [server.address for server in servers]

        async def resolve_to_them(_: str) -> tuple[str, ...]:
            return tuple(addresses)

        monkeypatch.setattr(plugin, "resolve", resolve_to_them)
        yield servers, addresses


async def test_all_gpus_of_an_exporter_are_one_sample() -> None:
    async with page_server(MINE) as pages, run_sensor(quick(pages.address)) as received:
        await received.until(lambda: len(received.of(GpuSample)) > 2)

    sample = received.of(GpuSample)[0]
    assert received.states() == []
    assert sample.at == NOON
    assert [gpu.index for gpu in sample.gpus] == [0, 1, 2]
    assert {gpu.temperature_c for gpu in sample.gpus} == {52.0}


@pytest.mark.parametrize(
    ("namespace", "pods", "reported"),
    [
        ("", (), [0, 1, 2]),
        ("chat", (), [0, 1]),
        ("chat", ("vllm-",), [0]),
        ("", ("embed-", "other-"), [1]),
        ("", ("vllm-", "embed-"), [0, 1]),
    ],
)
async def test_only_gpus_of_the_wanted_pods_are_reported(
    namespace: str, pods: tuple[str, ...], reported: list[int]
) -> None:
    async with (
        page_server(MINE) as pages,
        run_sensor(quick(pages.address, namespace=namespace, pods=pods)) as received,
    ):
        sample = await received.next(GpuSample)

    assert [gpu.index for gpu in sample.gpus] == reported


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (MINE, "1 addresses: GPUs of chat/embed-0, chat/vllm-7d9f-a, none of the wanted pods"),
        (page((labels(), H100)), "1 GPUs, none with a label `pod`: set DCGM_EXPORTER_KUBERNETES=true"),
    ],
    ids=["of other pods", "of no pod"],
)
async def test_no_gpu_of_the_wanted_pods_is_reported_with_what_there_is(body: bytes, why: str) -> None:
    async with page_server(body) as pages, run_sensor(quick(pages.address, pods=("llama-",))) as received:
        await received.until(received.states)
        pages.says(page((labels(pod="llama-0"), H100)))
        await received.next(GpuSample)

    assert [state.available for state in received.states()] == [False, True]
    assert why in received.states()[0].why


async def test_each_node_behind_the_name_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Dcgm(url=NAME, namespace="chat", pods=("vllm-", "flettner-chat-"), every_s=0.02, timeout_s=20.0)
    async with exporters(monkeypatch, MINE, OTHER_NODE, NOT_MINE), run_sensor(wanted) as received:
        await received.next(GpuSample)

    assert received.states() == []
    assert sorted(uuids(received)) == ["GPU-gpu-1-0", "GPU-gpu-2-0"]


async def test_a_node_with_two_addresses_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        exporters(monkeypatch, MINE, MINE),
        run_sensor(Dcgm(url=NAME, every_s=0.02, timeout_s=20.0)) as received,
    ):
        await received.next(GpuSample)

    assert uuids(received) == ["GPU-gpu-1-0", "GPU-gpu-1-1", "GPU-gpu-1-2"]


async def test_a_node_without_wanted_gpus_may_fail_and_another_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = Dcgm(url=NAME, namespace="chat", pods=("vllm-", "flettner-"), every_s=0.02, timeout_s=20.0)
    async with (
        exporters(monkeypatch, MINE, OTHER_NODE, NOT_MINE) as ((_, other, unwanted), addresses),
        run_sensor(wanted) as received,
    ):
        await received.next(GpuSample)
        unwanted.answers["/metrics"] = NOT_THERE
        for _ in range(3):
            await received.next(GpuSample)
        quiet = received.states()
        other.answers["/metrics"] = NOT_THERE
        await received.until(received.states)
        for _ in range(3):
            await received.next(GpuSample)
        rest, lost = uuids(received), len(received.states())
        addresses.remove(other.address)
        await received.until(lambda: len(received.states()) > 1)

    assert quiet == []
    assert (rest, lost) == (["GPU-gpu-1-0"], 1)
    assert [state.available for state in received.states()] == [False, True]
    assert (
        received.states()[0].why
        == f"http://{other.address}/metrics answered 404, not 200: see the exporter's log"
    )


LOST = {
    "vllm": (answer(PAGE), "no metric of NVIDIA's DCGM exporter"),
    "html": (answer(b"<html><body>Bad Gateway</body></html>\n"), "not a metrics page: starts with '<html>"),
    "binary": (answer(bytes(range(256)) * 40), "not a metrics page: not UTF-8"),
    "empty": (answer(b""), "the exporter reads no GPU"),
    "last line cut": (answer(MINE[:-3]), "cut: it ends in"),
    "connection cut": (answer(MINE)[:-500], "ContentLengthError"),
    "not http": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "/metrics: "),
    "closed": (b"", "disconnected"),
    "404": (NOT_THERE, "answered 404, not 200"),
    "redirect": (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "answered 302, not 200"),
    "huge": (answer(b"# TYPE a gauge\n" + b"a 1\n" * 2_500_000), "larger than 8388608 bytes"),
    "many samples": (
        answer(b"# TYPE a gauge\n" + b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 1\n' * 40_000),
        "more than 32768 samples",
    ),
}


@pytest.mark.parametrize("kind", LOST)
async def test_a_bad_answer_and_the_recovery_are_each_reported_once(kind: str) -> None:
    response, why = LOST[kind]
    async with page_server(MINE) as pages, run_sensor(quick(pages.address)) as received:
        await received.next(GpuSample)
        pages.answers["/metrics"] = response
        await received.until(received.states)
        requests, scraped = pages.requests["/metrics"], len(received.of(GpuSample))
        await pages.until_requested("/metrics", requests + 3)
        assert len(received.of(GpuSample)) == scraped
        pages.says(MINE)
        await received.next(GpuSample)

    assert [(state.source, state.available) for state in received.states()] == [
        ("dcgm", False),
        ("dcgm", True),
    ]
    assert why in received.states()[0].why


async def test_an_exporter_that_hangs_is_reported() -> None:
    async with page_server(MINE) as pages:
        pages.answers["/metrics"] = None
        async with run_sensor(quick(pages.address, timeout_s=0.2)) as received:
            await received.until(received.states)
            pages.says(MINE)
            await received.next(GpuSample)

    assert "no answer from http://127.0.0.1:" in received.states()[0].why
    assert [state.available for state in received.states()] == [False, True]


@pytest.mark.parametrize("host", ["no-such-name.invalid", "x" * 64 + ".invalid", "a..b"])
async def test_a_name_that_does_not_resolve_is_reported_once(host: str) -> None:
    async with run_sensor(quick(f"{host}:9400")) as received:
        await received.until(received.states)
        await asyncio.sleep(0.1)

    (state,) = received.states()
    assert f"{host} does not resolve" in state.why


async def test_more_gpus_than_a_cluster_gives_one_target_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(number: int) -> bytes:
        return page(*[(labels(index, node=f"gpu-{number}"), H100) for index in range(256)])

    async with (
        exporters(monkeypatch, *map(node, range(5))),
        run_sensor(Dcgm(url=NAME, every_s=0.02, timeout_s=20.0)) as received,
    ):
        await received.until(received.states)

    assert "1280 GPUs, more than 1024: set `namespace` and `pods`" in received.states()[0].why


def test_a_url_without_a_path_is_the_metrics_page() -> None:
    assert Dcgm(url="http://[fd00::1]:9400").pods == ()


BUILD: Callable[..., Dcgm] = Dcgm


@pytest.mark.parametrize(
    "options",
    [
        {"url": "dcgm-exporter:9400"},
        {"url": "https://dcgm-exporter:9400/metrics"},
        {"url": "http://"},
        {"url": "http://host:99999/metrics"},
        {"url": "http://host:0/metrics"},
        {"url": "http://user:pass@host:9400/metrics"},
        {"url": "http://host:9400/metrics?all=1"},
        {"url": "http://[::1/metrics"},
        {"pods": ["vllm-", ""]},
        {"pods": [7]},
        {"every_s": 0},
        {"timeout_s": float("nan")},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must"):
        BUILD(**({"url": NAME} | options))
