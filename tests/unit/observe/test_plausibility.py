"""Scrapes that cannot be true of an engine."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from flettner.agent.domain.model import HotKnobs, Server
from flettner.agent.domain.reading import Buckets, EngineSample
from flettner.agent.observe.plausibility import find_nonsense, highest_setting
from flettner.vllm_facts.values import Setting

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SMALL: Setting = {"max_num_seqs": 8}
WIDE: Setting = {"max_num_seqs": 512, "data_parallel_size": 8}
BUSY = EngineSample(
    at=NOON,
    server="chat-r0",
    interval_s=1.0,
    running=8,
    waiting=3000,
    prompt_tokens=200_000,
    cached_tokens=150_000,
    generation_tokens=8_000,
    prefix_queries=200_000,
    prefix_hits=150_000,
    preemptions=20,
    finished={"stop": 90.0, "abort": 400.0},
    ttft=Buckets(edges=(0.1,), counts=(80, 10), sum=9.0),
    itl=Buckets(edges=(0.1,), counts=(7_900, 10), sum=9.0),
)


@pytest.mark.parametrize("setting", [SMALL, WIDE, {}], ids=["small", "wide", "unknown"])
@pytest.mark.parametrize("interval_s", [0.0, 0.01, 1.0, 60.0])
def test_a_busy_engine_is_plausible(setting: Setting, interval_s: float) -> None:
    assert find_nonsense(replace(BUSY, interval_s=interval_s), setting) == ""


@pytest.mark.parametrize(
    ("sample", "setting", "why"),
    [
        (replace(BUSY, running=17), SMALL, "17 requests run, at most 16 can"),
        (replace(BUSY, running=8193), WIDE, "8193 requests run, at most 8192 can"),
        (replace(BUSY, running=4097), {}, "4097 requests run, at most 4096 can"),
        (replace(BUSY, waiting=1e9), SMALL, "1e+09 requests wait"),
        (
            replace(BUSY, generation_tokens=2e5),
            SMALL,
            "200000 generated tokens in 1 s, at most 160000",
        ),
        (replace(BUSY, generation_tokens=1e8), WIDE, "1e+08 generated tokens in 1 s"),
        (replace(BUSY, interval_s=10.0, generation_tokens=1e9), SMALL, "1e+09 generated tokens in 10 s"),
        (replace(BUSY, prompt_tokens=2e8), SMALL, "2e+08 tokens of prompts"),
        (replace(BUSY, finished={"stop": 1e6}), SMALL, "1e+06 finished requests"),
        (replace(BUSY, ttft=Buckets(edges=(), counts=(1e6,), sum=1.0)), SMALL, "1e+06 first tokens"),
    ],
)
def test_what_no_engine_does_is_nonsense(sample: EngineSample, setting: Setting, why: str) -> None:
    assert why in find_nonsense(sample, setting)


def test_a_cap_that_is_raised_while_the_server_runs_makes_no_nonsense() -> None:
    hot = HotKnobs(limits={"max_num_seqs": (1, 256)}, start={"max_num_seqs": 256})
    server = Server(name="chat-r0", setting=SMALL, hot=hot)

    assert find_nonsense(replace(BUSY, running=62), highest_setting(server)) == ""
    assert find_nonsense(replace(BUSY, running=62), highest_setting(replace(server, hot=None))) != ""
