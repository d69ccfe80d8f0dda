"""Data-parallel engines behind one address: each request is of one engine, and the page is of all."""

import asyncio

from flettner.simulator.data_parallel import DataParallelEngine, choose_engine
from flettner.simulator.flags import parse
from flettner.simulator.kv_cache import KvCache
from flettner.simulator.scheduler import Scheduler, SchedulerLimits, SimulatedRequest
from flettner.vllm_facts.metrics.totals import totals
from tests.support.data_parallel_server import DataParallelServer, new_virtual_server
from tests.unit.simulator.running import running
from tests.unit.simulator.test_server import ask

ENGINES = ("--data-parallel-size", "3")


def new_request(number: int, at_s: float = 0.0) -> SimulatedRequest:
    return SimulatedRequest(name=f"{number}", prompt=100, wanted=50, arrived_at=at_s)


def a_server(*words: str) -> DataParallelServer:
    server = new_virtual_server(
        "dp", parse(["--model", "tiny", "--sim-jitter", "0", *words]), now_s=0, unix_s=0
    )
    assert isinstance(server, DataParallelServer)
    return server


def test_each_request_goes_to_the_engine_with_the_least_load() -> None:
    server = a_server(*ENGINES)

    for number in range(7):
        server.ask(new_request(number))

    assert [
        len(engine.scheduler.waiting) + len(engine.scheduler.running) for engine in (server, *server.others)
    ] == [3, 2, 2]
    assert (server.open, server.routed) == (7, 7)


def test_one_that_waits_counts_as_four_that_run() -> None:
    def loaded(running: int, waiting: int) -> Scheduler:
        scheduler = Scheduler(SchedulerLimits(), KvCache(1000))
        scheduler.running = [new_request(number) for number in range(running)]
        scheduler.waiting.extend(new_request(number) for number in range(waiting))
        return scheduler

    assert choose_engine([loaded(0, 1), loaded(3, 0), loaded(4, 0)]) == 1
    assert choose_engine([loaded(0, 1), loaded(5, 0), loaded(4, 0)]) == 0
    assert choose_engine([loaded(1, 0), loaded(1, 0), loaded(1, 0)], first=2) == 2


def test_the_page_has_the_series_of_every_engine_and_those_of_the_process_once() -> None:
    server = a_server(*ENGINES)
    for number in range(9):
        server.ask(new_request(number, 0.01 * number))
    server.advance(60.0)

    page = server.page()
    whole = totals(page.encode())

    assert {record.outcome for record in server.take_records(60.0)} == {"ok"}
    assert len(server.take_ended()) == 9
    assert sum(whole.finished.values()) == 9
    assert {name: engine.ended for name, engine in whole.engines.items()} == {"0": 3, "1": 3, "2": 3}
    assert page.count("process_start_time_seconds 0") == 1
    assert page.count("# TYPE vllm:num_requests_running gauge") == 1


async def test_a_real_server_answers_with_all_of_its_engines() -> None:
    async with running(*ENGINES) as server:
        answers = await asyncio.gather(
            ask(server.url, "completions", prompt="hello world", max_tokens=400, ignore_eos=True),
            ask(server.url, "completions", prompt="other words", max_tokens=400, ignore_eos=True),
            ask(server.url, "completions", prompt="a third text", max_tokens=400, ignore_eos=True),
        )
        assert isinstance(server.engine, DataParallelEngine)
        done = totals(server.engine.page().encode())

    assert [status for status, _ in answers] == [200, 200, 200]
    assert {name: engine.ended for name, engine in done.engines.items()} == {"0": 1, "1": 1, "2": 1}
