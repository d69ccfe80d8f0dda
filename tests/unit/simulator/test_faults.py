"""Faults of a simulated server, as observed by clients."""

import asyncio
from contextlib import suppress
from math import inf

import pytest
from aiohttp import ClientConnectorError, ClientSession

from flettner.simulator.faults import Faults, faults_for
from flettner.simulator.step_time import StepWork
from flettner.simulator.traffic import Load, TrafficGenerator
from flettner.simulator.workload import Shape, lengths
from tests.support.ports import free_port
from tests.unit.simulator.running import process, running, until

SHORT = Shape(prompt=lengths("8"), output=lengths("6"))


async def outcomes(*argv: str, requests: int = 30) -> dict[str, int]:
    async with running(*argv) as server:
        traffic = TrafficGenerator(server.url, "tiny", Load(rate=200), shape=SHORT, seed=3)
        await traffic.start()
        await until(lambda: traffic.tally.sent >= requests)
        await traffic.stop()
    return traffic.tally.counts()


@pytest.mark.parametrize(
    ("fault", "outcome"), [("errors", "failed"), ("abort", "aborted"), ("truncate", "truncated")]
)
async def test_a_share_of_the_answers_is_wrong(fault: str, outcome: str) -> None:
    always = await outcomes("--sim-fault", f"max_num_seqs=7:{fault}=1", "--max-num-seqs", "7")
    some = await outcomes("--sim-fault", f"max_num_seqs=7:{fault}=0.5", "--max-num-seqs", "7")
    spared = await outcomes("--sim-fault", f"max_num_seqs=7:{fault}=1", "--max-num-seqs", "8")

    assert always[outcome] == always["sent"] >= 30
    assert 0 < some[outcome] < some["sent"]
    assert some["ok"] + some[outcome] == some["sent"]
    assert spared["ok"] == spared["sent"]


async def test_slow_multiplies_step_times() -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 30, "ignore_eos": True}

    async def seconds(*argv: str) -> float:
        async with running(*argv) as server, ClientSession() as session:
            started = asyncio.get_running_loop().time()
            async with session.post(f"{server.url}/v1/completions", json=body) as got:
                await got.read()
            return asyncio.get_running_loop().time() - started

    assert await seconds("--sim-fault", "*:slow=10") > 10 * 30 * 0.0238 / 20


PREFILL, DECODE = StepWork(tokens=100, sequences=9, prefills=1), StepWork(tokens=8, sequences=8)


@pytest.mark.parametrize(
    ("fault", "prefill", "decode", "late"),
    [
        ("slow_prefill=3", 3.0, 1.0, 1.0),
        ("slow_decode=3", 1.0, 3.0, 3.0),
        ("slow_above=8", 5.0, 1.0, 1.0),
        ("slow_after=600", 1.0, 1.0, 5.0),
    ],
)
def test_a_step_is_slowed_by_its_tokens_batch_size_or_time(
    fault: str, prefill: float, decode: float, late: float
) -> None:
    faults = faults_for([f"*:{fault}"], {})

    assert (faults.pace(PREFILL, 0.0), faults.pace(DECODE, 0.0), faults.pace(DECODE, 600.0)) == (
        prefill,
        decode,
        late,
    )


def test_a_stall_fills_the_end_of_each_minute_and_a_hang_never_ends() -> None:
    stalls = Faults(stall=15.0)

    assert [stalls.ends_s(at_s) for at_s in (44.9, 45.0, 59.0, 60.0, 110.0)] == [
        44.9,
        60.0,
        60.0,
        60.0,
        120.0,
    ]
    assert Faults(hang_after=3.0).ends_s(2.9) == 2.9
    assert Faults(hang_after=3.0).ends_s(3.0) == inf


@pytest.mark.parametrize("fault", ["stall=60", "wrong=1.1", "slow_decode=0", "slow=nan"])
def test_an_impossible_fault_is_rejected(fault: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        faults_for([f"*:{fault}"], {})


async def test_a_wrong_answer_has_different_words_and_the_same_length() -> None:
    body = {"model": "tiny", "prompt": "once upon a time", "max_tokens": 12, "ignore_eos": True}

    async def words(*argv: str) -> list[str]:
        async with (
            running(*argv) as server,
            ClientSession() as session,
            session.post(f"{server.url}/v1/completions", json=body) as got,
        ):
            return str((await got.json())["choices"][0]["text"]).split()

    right, again, wrong = await words(), await words(), await words("--sim-fault", "*:wrong=1")
    assert right == again
    assert len(wrong) == len(right)
    assert wrong != right


async def test_a_hung_engine_produces_nothing_and_stays_healthy() -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    async with running("--sim-fault", "*:hang_after=0.2") as server, ClientSession() as session:
        async with session.post(f"{server.url}/v1/completions", json=body) as got:
            await got.content.readline()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await got.read()
        for path in ("/health", "/metrics"):
            async with session.get(server.url + path) as got:
                assert got.status == 200


async def test_a_server_exits_only_after_its_first_request() -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    async with process("--sim-fault", "*:die_after=0.3") as server, ClientSession() as session:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.process.wait(), 1.0)
        with suppress(Exception):
            async with session.post(f"{server.url}/v1/completions", json=body) as got:
                await got.read()

        assert await asyncio.wait_for(server.process.wait(), 20) == 1


async def test_a_server_that_is_never_ready_refuses_connections_and_exits_on_sigterm() -> None:
    port = free_port()
    argv = ("--sim-fault", "*:never_ready", "--port", str(port))
    async with process(*argv, ready=False) as server, ClientSession() as session:
        await server.wait_for("GPU KV cache size")
        with pytest.raises((TimeoutError, AssertionError)):
            async with asyncio.timeout(1.0):
                await server.wait_for("Application startup complete")
        with pytest.raises(ClientConnectorError):
            await session.get(f"http://127.0.0.1:{port}/health")
        server.process.terminate()

        assert await asyncio.wait_for(server.process.wait(), 20) == 0
