"""Overhead of the proxy on a stream: time to the first token, gaps between tokens, CPU per token.

python -m bench.proxy_overhead [--streams N] [--chunks N] compares no proxy, Envoy as configured and Envoy
without the filter that inspects bodies, and writes bench/results/proxy_overhead.json. Client, server and
proxy share the machine, so only differences are meaningful.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles

from bench.results import new_parser, write
from bench.usage import usage_of
from flettner.actuators.envoy.plugin import EnvoyPlugin
from flettner.actuators.envoy.split import NAMESPACE
from flettner.actuators.envoy.traffic import EnvoyTraffic
from flettner.agent.domain.effects import Route
from flettner.agent.domain.model import Server
from flettner.agent.domain.ports import Site

GAP_S = 0.02
CHUNK = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Stream the number of chunks given in the request body, one per GAP_S; 0 chunks: [DONE] at once."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            chunks = json.loads(await reader.readexactly(size))["chunks"]
            writer.write(HEAD)
            for _ in range(chunks):
                writer.write(framed(CHUNK))
                await asyncio.sleep(GAP_S)
            writer.write(framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def stream(port: int, chunks: int, *, times: int = 1) -> tuple[list[float], list[float]]:
    """Return the seconds to the first byte of each body, and between events, over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    clock = asyncio.get_running_loop().time
    first: list[float] = []
    gaps: list[float] = []
    body = json.dumps({"stream": True, "chunks": chunks}).encode()
    kind = f"content-type: application/json\r\ncontent-length: {len(body)}"
    for _ in range(times):
        started = clock()
        writer.write(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{kind}\r\n\r\n".encode() + body)
        await reader.readuntil(b"\r\n\r\n")
        last = 0.0
        while True:
            event = await reader.readuntil(b"\n\n\r\n")
            now = clock()
            (gaps if last else first).append(now - (last or started))
            last = now
            if b"[DONE]" in event:
                break
        await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    return first, gaps


@dataclass(frozen=True, kw_only=True)
class Result:
    way: str
    ttft_p50_us: float
    ttft_p99_us: float
    gap_p50_ms: float
    gap_p99_ms: float
    cpu_us_per_chunk: float | None = None


async def measure(way: str, port: int, pid: int | None, *, streams: int, chunks: int) -> Result:
    await stream(port, 0, times=200)  # warm
    first, _ = await stream(port, 0, times=2000)
    pids = () if pid is None else (pid,)
    before = usage_of(*pids)
    results = await asyncio.gather(*(stream(port, chunks) for _ in range(streams)))
    spent = usage_of(*pids).cpu_s - before.cpu_s
    gaps = [gap for _, some in results for gap in some[:-1]]
    ttft, gap = quantiles(first, n=100), quantiles(gaps, n=100)
    return Result(
        way=way,
        ttft_p50_us=round(ttft[49] * 1e6),
        ttft_p99_us=round(ttft[98] * 1e6),
        gap_p50_ms=round(gap[49] * 1e3, 2),
        gap_p99_ms=round(gap[98] * 1e3, 2),
        cpu_us_per_chunk=round(spent / (streams * chunks) * 1e6, 1) if pid else None,
    )


async def without_filter(traffic: EnvoyTraffic) -> None:
    """Remove the Lua filter from the listener file; Envoy reloads it while running."""
    path = traffic.home / "xds" / "lds.json"
    content = json.loads(path.read_text())
    (chain,) = content["resources"][0]["filter_chains"]
    filters = chain["filters"][0]["typed_config"]["http_filters"]
    filters[:] = [http_filter for http_filter in filters if http_filter["name"] != NAMESPACE]
    content["version_info"] = "bare"
    fresh = path.with_name(".bare")
    fresh.write_text(json.dumps(content))
    fresh.rename(path)
    await asyncio.sleep(1.0)


async def compare(streams: int, chunks: int, listen: int, backend: int) -> list[Result]:
    server = Server(name="chat-r1", setting={}, address=f"127.0.0.1:{backend}")
    route = Route(number=1, servers=(server,), weights={server.name: 100}, fallback=server.name)
    results = [await measure("direct", backend, None, streams=streams, chunks=chunks)]
    with tempfile.TemporaryDirectory() as folder:
        site = Site(target="chat", state_dir=Path(folder) / "chat", epoch=1)
        traffic = EnvoyPlugin(listen=f"127.0.0.1:{listen}").bind(site)
        try:
            await traffic.route(route)
            pid = int((traffic.home / "envoy.pid").read_text())
            results.append(await measure("envoy", listen, pid, streams=streams, chunks=chunks))
            await without_filter(traffic)
            results.append(await measure("envoy without Lua", listen, pid, streams=streams, chunks=chunks))
        finally:
            await traffic.stop()
    return results


async def backend_main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def main() -> None:
    parser = new_parser("bench.proxy_overhead", __doc__, "proxy_overhead.json")
    parser.add_argument("--streams", type=int, default=60)
    parser.add_argument("--chunks", type=int, default=300)
    parser.add_argument("--listen", type=int, default=18080)
    parser.add_argument("--backend", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.backend:
        await backend_main()
        return
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.proxy_overhead", "--backend"), stdout=asyncio.subprocess.PIPE
    )
    try:
        port = int(await child.stdout.readline()) if child.stdout else 0
        results = await compare(options.streams, options.chunks, options.listen, port)
    finally:
        child.kill()
        await child.wait()
    for result in results:
        print(result)
    write(options.json, {"ways": [asdict(result) for result in results]})


if __name__ == "__main__":
    asyncio.run(main())
