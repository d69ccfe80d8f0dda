"""`flettner advise` on edited metrics of real vLLM 0.32: the expected rule ranks first."""

import json
import re
from dataclasses import dataclass

import pytest

from tests.unit.cli.conftest import Advise, Scrapes
from tests.unit.sensors.pages import LATER, PAGE, two_engines, with_values

TTFT, ITL = "time_to_first_token_seconds", "inter_token_latency_seconds"
QUICK, SLOW = ((TTFT, 0.05, 200),), ((TTFT, 2.4, 200),)
SMOOTH, LATE = ((ITL, 0.02, 30_000),), ((ITL, 0.14, 30_000),)
MIXED = ((ITL, 0.14, 6_000), (ITL, 0.02, 24_000))
PROMISED = ("--ttft", "500ms", "--itl", "50ms")
DOCUMENTS = (("request_prompt_tokens", 8_000.0, 30), ("request_prompt_tokens", 90.0, 170))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The load on both pages and the increases in 30 s. `grew`: metric, value, observations."""

    running: int
    waiting: int = 0
    kv: float = 0.2
    preemptions: int = 0
    prompts: int = 30_000  # tokens
    answers: int = 30_000
    grew: tuple[tuple[str, float, int], ...] = (*QUICK, *SMOOTH)
    then: int | None = None  # requests that wait on the second page; None: as on the first

    @property
    def pages(self) -> tuple[bytes, bytes]:
        load = {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": self.kv,
        }
        first = with_values(
            PAGE, **load, num_preemptions_total=0, prompt_tokens_total=0, generation_tokens_total=0
        )
        left = load["num_requests_waiting"] if self.then is None else self.then
        last = with_values(
            LATER,
            **{**load, "num_requests_waiting": left},
            num_preemptions_total=self.preemptions,
            prompt_tokens_total=self.prompts,
            generation_tokens_total=self.answers,
        )
        for metric, value, times in self.grew:
            last = observed(last, metric, value, times)
        return first, last


def observed(page: bytes, metric: str, value: float, times: int) -> bytes:
    """Return the page with further observations."""

    def more(match: re.Match[bytes]) -> bytes:
        le = re.search(rb'le="([^"]+)"', match[2])
        inside = le is None or le[1] == b"+Inf" or float(le[1]) >= value
        grown = times * (value if match[1] == b"sum" else 1) if inside else 0
        return b"vllm:%s_%s%s %f" % (metric.encode(), match[1], match[2], float(match[3]) + grown)

    return re.sub(rb"(?m)^vllm:%s_(bucket|count|sum)(\{.*\}) (\S+)$" % metric.encode(), more, page)


@pytest.mark.parametrize(
    ("seen", "flags", "options", "first"),
    [
        pytest.param(
            Seen(running=8, waiting=40, kv=0.05), "--max-num-seqs 8", (), ("Q1", 64), id="a queue, free KV"
        ),
        pytest.param(
            Seen(running=16, waiting=30, kv=0.1),
            "--max-num-seqs 256 --max-num-active-seqs 16",
            (),
            ("Q1", 64),
            id="admission capped by the warm knob",
        ),
        pytest.param(
            Seen(running=2, waiting=300, kv=0.0),
            "--max-num-seqs 2",
            (),
            ("Q1", 16),
            id="hundreds behind a cap of 2: one step",
        ),
        pytest.param(
            Seen(running=8, waiting=200, then=150, kv=0.03, grew=((TTFT, 38.0, 50),)),
            "--max-num-seqs 8",
            (),
            ("Q1", 64),
            id="what is left of a burst behind a cap of 8",
        ),
        pytest.param(
            Seen(running=10, waiting=14, kv=0.1), "--max-num-seqs 64", (), ("Q4", None), id="a stall"
        ),
        pytest.param(
            Seen(running=6, waiting=90, kv=0.1, prompts=480_000, answers=2_400, grew=((TTFT, 38.0, 60),)),
            "--max-num-batched-tokens 2048",
            PROMISED,
            ("Q4", None),
            id="prompts come faster than they go",
        ),
        pytest.param(
            Seen(running=60, waiting=20, kv=0.99, preemptions=60, grew=SLOW),
            "--max-num-seqs 64 --max-num-batched-tokens 1024 --enforce-eager",
            PROMISED,
            ("K1", 48),
            id="thrash outranks late tokens and missing graphs",
        ),
        pytest.param(
            Seen(running=64, waiting=20, kv=0.98), "--max-num-seqs 64", (), ("Q2", None), id="a full cache"
        ),
        pytest.param(
            Seen(running=4, prompts=900_000, grew=(*SLOW, *SMOOTH)),
            "--max-num-batched-tokens 256",
            PROMISED,
            ("P1", 1024),
            id="prefill-bound",
        ),
        pytest.param(
            Seen(running=40, prompts=20_000, grew=(*QUICK, *LATE)),
            "--max-num-seqs 64",
            PROMISED,
            ("P2", None),
            id="decode-bound: the budget stays",
        ),
        pytest.param(
            Seen(running=40, prompts=20_000, grew=(*QUICK, *LATE)),
            "--max-num-seqs 64 --no-async-scheduling",
            PROMISED,
            ("A1", None),
            id="decode-bound without async scheduling",
        ),
        pytest.param(
            Seen(running=40, prompts=600_000, grew=(*QUICK, *MIXED)),
            "--max-num-batched-tokens 8192",
            PROMISED,
            ("P2", 4096),
            id="answers late by the prompts in between",
        ),
        pytest.param(
            Seen(running=40, prompts=600_000, grew=((TTFT, 1.6, 200), *MIXED)),
            "--max-num-batched-tokens 8192",
            ("--itl", "50ms"),
            ("P2", 4096),
            id="only the gap is promised, and the alarm on the first token holds nothing",
        ),
        pytest.param(
            Seen(running=40, prompts=600_000, grew=(*SLOW, *MIXED, (TTFT, 0.01, 400), *DOCUMENTS)),
            "--max-num-batched-tokens 8192",
            PROMISED,
            ("P4", 1536),
            id="documents among chats, both late",
        ),
        pytest.param(
            Seen(running=60, prompts=60_000, grew=(*QUICK, *MIXED)),
            "--max-num-seqs 128 --cudagraph-capture-sizes 1 2 4 8",
            PROMISED,
            ("G2", None),
            id="batches without a graph",
        ),
        pytest.param(
            Seen(running=64, waiting=30, kv=0.7, grew=(*SLOW, *SMOOTH)),
            "--max-num-seqs 64",
            PROMISED,
            ("N1", None),
            id="as much as the cache carries, and more wait",
        ),
    ],
)
def test_expected_rule_ranks_first(
    advise: Advise,
    scrapes: Scrapes,
    seen: Seen,
    flags: str,
    options: tuple[str, ...],
    first: tuple[str, float | None],
) -> None:
    command = f"vllm serve tiny {flags}"

    _, out, err = advise(
        *scrapes(*seen.pages), "--vllm-version", "0.32.0", "--flags", command, *options, "--json"
    )

    row = json.loads(out)["findings"][0]
    assert err == ""
    assert (row["rule"], row["suggested"]) == first


@pytest.mark.parametrize(
    ("seen", "flags"),
    [
        pytest.param(Seen(running=120, kv=0.5), "--max-num-seqs 256", id="all promises kept"),
        pytest.param(Seen(running=1, kv=0.01), "--max-num-seqs 1", id="one client, and a cap for one"),
        pytest.param(Seen(running=4), "--max-num-batched-tokens 512", id="a small budget that is enough"),
        pytest.param(Seen(running=1, kv=0.005), "--max-num-seqs 256", id="over-provisioned"),
        pytest.param(Seen(running=60, kv=0.8, preemptions=1), "--max-num-seqs 64", id="one preemption"),
        pytest.param(Seen(running=8, waiting=40, kv=0.7), "--max-num-seqs 8", id="a cache near its target"),
        pytest.param(
            Seen(running=0, waiting=14, kv=0.0, prompts=0, answers=0, grew=()),
            "--max-num-seqs 64",
            id="asleep",
        ),
        pytest.param(
            Seen(running=64, waiting=14, kv=1.0, prompts=0, answers=0, grew=()),
            "--max-num-seqs 64",
            id="a full cache that hangs",
        ),
    ],
)
def test_changes_nothing_if_no_change_is_needed_or_helps(
    advise: Advise, scrapes: Scrapes, seen: Seen, flags: str
) -> None:
    _, out, _ = advise(*scrapes(*seen.pages), "--flags", f"vllm serve tiny {flags}", *PROMISED, "--json")

    assert [row for row in json.loads(out)["findings"] if row["knob"]] == []


@pytest.mark.parametrize(
    ("running", "flags", "to"),
    [
        pytest.param(8, "--max-num-seqs 8 --data-parallel-size 2", 16, id="both are full"),
        pytest.param(8, "--max-num-seqs 16 --data-parallel-size 2", None, id="both are half empty"),
        pytest.param(8, "", 16, id="the page reports the number of blocks"),
    ],
)
def test_names_the_cap_of_each_engine(
    advise: Advise, scrapes: Scrapes, running: int, flags: str, to: int | None
) -> None:
    first, last = Seen(running=running, waiting=7, kv=0.01).pages
    pages = scrapes(two_engines(first, first), two_engines(last, last))

    _, out, _ = advise(*pages, *(("--flags", f"vllm serve tiny {flags}") if flags else ()), "--json")

    caps = [row["suggested"] for row in json.loads(out)["findings"] if row["knob"] == "max_num_seqs"]
    assert caps == ([to] if to else [])
