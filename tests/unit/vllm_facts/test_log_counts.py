"""The counts of requests in a log."""

import pytest

from flettner.vllm_facts.log_counts import most_at_once, read_counts, waits_for_cache

FRONT = (
    "INFO [loggers.py:1] Engine 002: Avg prompt throughput: {} tokens/s, "
    "Avg generation throughput: {} tokens/s, "
)


def count(running: int, waiting: int, usage: float, *, rate: float = 50.0, more: str = "") -> str:
    return FRONT.format(rate, rate) + (
        f"Running: {running} reqs, Waiting: {waiting} reqs, {more}GPU KV cache usage: {usage}%, "
        "Prefix cache hit rate: 71.5%"
    )


def test_a_line_of_counts_is_read_with_all_that_it_says() -> None:
    log = (
        count(7, 3, 99.5, more="Deferred: 1 reqs, Preemptions: 4, ")
        + ", External prefix cache hit rate: 2.5%",
    )

    (read,) = read_counts(log)

    assert (read.engine, read.running, read.waiting, read.preempted) == ("002", 7, 3, 4)
    assert (read.usage, read.hits, read.host_hits, read.media) == (99.5, 71.5, 2.5, False)


def test_a_line_of_an_older_release_is_read_without_what_it_lacks() -> None:
    line = (
        "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 1 reqs, "
        "Swapped: 0 reqs, Pending: 8 reqs, GPU KV cache usage: 12.5%, CPU KV cache usage: 80.0%."
    )

    (read,) = read_counts((line,))

    assert (read.engine, read.waiting, read.usage, read.hits, read.host_hits) == ("", 8, 12.5, None, None)


def test_the_cache_of_a_server_on_cpus_is_read() -> None:
    (read,) = read_counts((count(2, 1, 96.5).replace("GPU KV", "CPU KV"),))

    assert read.usage == 96.5


def test_other_lines_are_no_counts() -> None:
    assert read_counts(("INFO Application startup complete.", "Running: 3 reqs, Waiting: 0 reqs")) == ()


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ((count(9, 4, 99.0),), True),
        ((count(9, 0, 99.0),), False),
        ((count(9, 4, 60.0),), False),
        ((count(9, 4, 99.0, rate=0.0),), False),
        ((count(9, 4, 99.0), count(9, 0, 40.0)), False),
        ((), False),
    ],
)
def test_the_latest_count_says_whether_requests_wait_for_cache(
    log: tuple[str, ...], *, expected: bool
) -> None:
    assert waits_for_cache(log) is expected


def test_the_most_requests_at_once_need_two_busy_counts() -> None:
    assert most_at_once((count(3, 5, 9.0), count(4, 0, 9.0))) == 8
    assert most_at_once((count(3, 5, 9.0), count(0, 0, 0.0))) is None
