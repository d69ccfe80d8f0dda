"""`flettner advise` on saved scrapes of real vLLM and on a server that replays them."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flettner.primitives.sockets import find_free_port
from tests.support.answering import answering
from tests.unit.cli.conftest import FLAGS, QUEUE, Advise, Options, Scrapes
from tests.unit.sensors.pages import DISABLED_LOG_STATS, LATER, PAGE, with_values, without


@contextmanager
def scraped(*pages: bytes) -> Iterator[str]:
    """Serve the pages one after the other on /metrics, repeating the last one; yield the URL."""
    left = list(pages)

    def answer(path: str, _: bytes) -> tuple[int, bytes]:
        if path == "/metrics":
            return 200, left.pop(0) if len(left) > 1 else left[0]
        return (200, b'{"version":"0.32.0"}') if path == "/version" else (404, b"")

    with answering(answer) as url:
        yield url


def test_queue_behind_a_low_cap_ranks_the_cap_first(advise: Advise, queued: Options) -> None:
    """14 requests wait behind a cap of 2 with an empty KV cache."""
    status, out, err = advise(*queued, "--seconds", "10", "--flags", FLAGS, "--json")

    document = json.loads(out)
    row = document["findings"][0]
    assert (status, err) == (1, "")
    assert (row["rule"], row["knob"], row["current"], row["suggested"]) == ("Q1", "max_num_seqs", 2, 16)
    assert (row["evidence"]["waiting"], row["evidence"]["window_s"]) == (14.0, 10.0)
    assert document["command"] == ["vllm", "serve", "tiny", "--max-num-seqs", "16"]
    assert "enable_prefix_caching" not in {row["knob"] for row in document["findings"]}


def test_says_that_one_of_several_servers_behind_a_name_is_read(
    advise: Advise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them counts by itself, so that the same one is read each time."""
    plain = socket.getaddrinfo

    def resolve(host: str, *given: Any) -> Any:  # noqa: ANN401
        names = ("127.0.0.1", "127.0.0.2") if host == "vllm.chat.svc" else (host,)
        return [info for name in names for info in plain(name, *given)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with scraped(PAGE, LATER) as url:
        named = url.replace("127.0.0.1", "vllm.chat.svc")
        _, out, err = advise(named, "--for", "0.5")

    assert err == ""
    assert out.startswith("1 of the 2 servers behind this name observed for ")


SERVER = f"""#!{sys.executable}
import pathlib, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

pages = ["page", "later"]

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        page = pages.pop(0) if len(pages) > 1 and self.path == "/metrics" else pages[0]
        self.wfile.write(pathlib.Path(__file__).with_name(page).read_bytes())

server = HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
print("listens", flush=True)
server.serve_forever()
"""


def test_reads_the_flags_of_a_server_on_this_host(advise: Advise, tmp_path: Path) -> None:
    """A local server need not be described: its command line is there."""
    script, port = tmp_path / "vllm", find_free_port()
    script.write_text(SERVER)
    script.chmod(0o700)
    (tmp_path / "page").write_bytes(with_values(PAGE, **QUEUE))
    (tmp_path / "later").write_bytes(with_values(LATER, **QUEUE))
    command = (
        script,
        "serve",
        "tiny",
        "--port",
        str(port),
        "--max-num-seqs",
        "2",
        "--of-a-fork",
        "--api-key",
        "secret",
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"listens\n"
        try:
            _, out, err = advise(f"http://127.0.0.1:{port}", "--for", "0.5")
        finally:
            server.kill()

    assert err == ""
    assert f"its flags, from process {server.pid}: tiny --max-num-seqs 2 --of-a-fork\n" in out
    assert "max_num_seqs is 2" in " ".join(out.split())
    assert "vllm serve tiny --max-num-seqs 16 --of-a-fork" in out


def test_infers_the_cap_without_the_flags(advise: Advise, queued: Options) -> None:
    status, out, _ = advise(*queued)

    assert status == 1
    assert "Q1 queue-cap-too-low  max_num_seqs 2 -> 16  [auto]" in out
    assert "ADD THESE FLAGS TO THE SERVER'S COMMAND\nvllm serve tiny --max-num-seqs 16\n" in out
    assert "observed for 30 s: 2.0 running, 14.0 waiting" in out


def test_does_not_raise_the_cap_of_a_stalled_server(advise: Advise, scrapes: Scrapes) -> None:
    page = with_values(PAGE, **QUEUE)

    status, out, _ = advise(*scrapes(page, page))

    assert status == 1
    assert "stalled: requests run" in out
    assert "Q1" not in out


def test_advise_also_lints_the_flags(advise: Advise, queued: Options) -> None:
    _, out, _ = advise(*queued, "--flags", "--max-num-seqs 2 --enforce-eager", "--json")

    document = json.loads(out)
    assert {"Q1", "G1"} <= {row["rule"] for row in document["findings"]}
    assert document["command"] == ["vllm", "serve", "tiny", "--max-num-seqs", "16", "--no-enforce-eager"]


def test_reports_a_finding_of_flags_and_traffic_once(advise: Advise, queued: Options) -> None:
    options = ("--vllm-version", "0.32.0", "--flags", f"{FLAGS} --no-async-scheduling", "--json")

    _, out, _ = advise(*queued, *options)

    document = json.loads(out)
    (row,) = [row for row in document["findings"] if row["rule"] == "A1"]
    assert row["evidence"]["running"] == 2.0
    assert document["command"] == ["vllm", "serve", "tiny", "--max-num-seqs", "16"]


def test_a_full_kv_cache_outranks_the_queue(advise: Advise, scrapes: Scrapes) -> None:
    full = {"num_requests_running": 40.0, "num_requests_waiting": 14.0, "kv_cache_usage_perc": 0.99}
    pages = scrapes(
        with_values(PAGE, **full, num_preemptions_total=0),
        with_values(LATER, **full, num_preemptions_total=60),
    )

    _, out, _ = advise(*pages, "--flags", "vllm serve tiny --max-num-seqs 40", "--json")

    findings = json.loads(out)["findings"]
    assert "Q1" not in {row["rule"] for row in findings}
    raised = [row for row in findings if row["knob"] == "max_num_seqs" and (row["suggested"] or 0) > 40]
    assert raised == []


def test_idle_server_yields_no_evidence(advise: Advise, scrapes: Scrapes) -> None:
    status, out, err = advise(*scrapes(PAGE, PAGE))

    assert (status, err) == (0, "")
    assert "idle: a server without traffic" in out


def test_json_reports_an_idle_server(advise: Advise, scrapes: Scrapes) -> None:
    status, out, _ = advise(*scrapes(PAGE, PAGE), "--json")

    document = json.loads(out)
    assert (status, document["findings"], document["window"]["idle"]) == (0, [], True)


def test_samples_a_live_server(advise: Advise) -> None:
    with scraped(with_values(PAGE, **QUEUE), with_values(LATER, **QUEUE)) as url:
        status, out, err = advise(url, "--for", "1", "--flags", FLAGS, "--json")

    document = json.loads(out)
    assert (status, err) == (1, "")
    assert document["findings"][0]["rule"] == "Q1"
    assert not any("--vllm-version" in message for message in document["unknown"])


def test_does_not_judge_a_server_that_stops_responding(advise: Advise) -> None:
    with scraped(with_values(PAGE, **QUEUE), with_values(LATER, **QUEUE), b"gone") as url:
        status, out, _ = advise(url + "/metrics", "--for", "2", "--flags", FLAGS)

    assert status == 0
    assert "the server answered only" in out


def test_log_under_load_replaces_the_metrics(advise: Advise, tmp_path: Path) -> None:
    """`Engine 000:` lines of vLLM 0.32 from two data-parallel engines with a cap of 2 each."""
    line = (
        "INFO 11-21 12:00:10 [loggers.py:259] Engine {:03}: Avg prompt throughput: 12.0 tokens/s, Avg "
        "generation throughput: 80.1 tokens/s, Running: 2 reqs, Waiting: 7 reqs, GPU KV cache usage: 0.4%, "
        "Prefix cache hit rate: 0.0%\n"
    )
    log = tmp_path / "log"
    log.write_text("INFO before\n" + (line.format(0) + line.format(1)) * 3)

    status, out, _ = advise("--log", str(log), "--flags", FLAGS, "--json")

    document = json.loads(out)
    assert status == 1
    assert document["findings"][0]["rule"] == "Q1"
    assert (document["window"]["seconds"], document["window"]["waiting"]) == (30.0, 14.0)


def test_log_without_load_names_the_required_input(advise: Advise, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("INFO Application startup complete.\n")

    status, _, err = advise("--log", str(tmp_path / "log"))

    assert status == 2
    assert "give the URL" in err


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param((), "give the URL", id="nothing"),
        pytest.param(("--scrape", "a"), "two saved scrapes", id="one scrape"),
        pytest.param(("http://x", "--scrape", "a", "--scrape", "b"), "both a URL and scrapes", id="both"),
        pytest.param(("ftp://x",), "http://127.0.0.1:8000", id="no URL"),
        pytest.param(("http://127.0.0.1:1", "--for", "1"), "check that a vLLM server runs there", id="down"),
        pytest.param(("--scrape", "/no", "--scrape", "/no"), "curl URL/metrics", id="no file"),
        pytest.param(("http://127.0.0.1:1", "--for", "0"), "--for 0", id="no time"),
        pytest.param(("http://127.0.0.1:1", "--ttft", "soon"), "500ms", id="no duration"),
        pytest.param(("http://127.0.0.1:1", "--flags", "'"), "--flags", id="open quote"),
        pytest.param(("http://127.0.0.1:1", "--flags", "ls -l"), "starts no vLLM server", id="other flags"),
    ],
)
def test_usage_error_names_the_remedy(advise: Advise, argv: tuple[str, ...], expected: str) -> None:
    status, out, err = advise(*argv)

    assert (status, out) == (2, "")
    assert expected in err


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param(LATER, PAGE, "the older page first", id="the wrong way round"),
        pytest.param(DISABLED_LOG_STATS, LATER, "no vllm: metric", id="not vLLM's"),
        pytest.param(PAGE, without(LATER, "prefix_cache_hits_total"), "cut", id="a piece of a page"),
    ],
)
def test_refuses_incomparable_scrapes(
    advise: Advise, scrapes: Scrapes, first: bytes, second: bytes, expected: str
) -> None:
    status, out, err = advise(*scrapes(first, second))

    assert (status, out) == (2, "")
    assert expected in err


def window_of(out: str) -> dict[str, Any]:
    window: dict[str, Any] = json.loads(out)["window"]
    return window


def test_applies_the_given_slo(advise: Advise, scrapes: Scrapes) -> None:
    busy = {"num_requests_running": 4.0}
    pages = scrapes(with_values(PAGE, **busy), with_values(LATER, **busy))

    _, out, _ = advise(*pages, "--ttft", "500ms", "--itl", "0.05s", "--json")

    assert window_of(out)["running"] == 4.0
