"""Which bucket of clients a request belongs to."""

from itertools import product

import pytest

from flettner.sensors.proxy_requests.clients import (
    LEAST,
    UNKNOWN,
    ClientBuckets,
    ClientFinder,
    read_buckets,
)


@pytest.mark.parametrize(
    ("text", "buckets"),
    [
        ("17.3.63", ClientBuckets(17, 3, 63)),
        ("17.-.-", ClientBuckets(17, None, None)),
        ("64.999.1", ClientBuckets(None, None, 1)),
        ("٣.-1.x", ClientBuckets(None, None, None)),
        ("1.2", UNKNOWN),
        ("-", UNKNOWN),
        (None, UNKNOWN),
        (7, UNKNOWN),
    ],
)
def test_reads_what_the_proxy_notes_and_nothing_else(text: object, buckets: ClientBuckets) -> None:
    assert read_buckets(text) == buckets


def test_a_client_is_its_address_whatever_keys_and_sessions_it_makes_up() -> None:
    finder = ClientFinder()
    others = [ClientBuckets(address, None, None) for address in range(8)]
    for client in others * LEAST:
        finder.bucket_of(client)

    assert {finder.bucket_of(ClientBuckets(9, *made_up)) for made_up in product(range(8), range(8))} == {9}


def test_behind_a_gateway_the_key_tells_clients_apart() -> None:
    finder = ClientFinder()
    for key in list(range(8)) * LEAST:
        finder.bucket_of(ClientBuckets(5, key, None))

    assert [finder.bucket_of(ClientBuckets(5, key, 1)) for key in range(8)] == list(range(8))


def test_after_a_restart_a_gateway_is_soon_no_longer_taken_for_one_client() -> None:
    finder = ClientFinder()
    buckets = [finder.bucket_of(ClientBuckets(5, None, session % 64)) for session in range(100)]

    assert buckets.count(5) <= 12
    assert len(set(buckets)) == 64


def test_behind_a_gateway_with_one_key_the_session_does() -> None:
    finder = ClientFinder()
    for number in range(8 * LEAST):
        finder.bucket_of(ClientBuckets(5, 2, 40 if number % 3 == 0 else None))

    assert finder.bucket_of(ClientBuckets(5, 2, 40)) == 40
    assert finder.bucket_of(ClientBuckets(5, 2, None)) is None


def test_the_only_client_of_a_site_is_in_no_group() -> None:
    finder = ClientFinder()
    for _ in range(3 * LEAST):
        finder.bucket_of(ClientBuckets(5, 2, 1))

    assert finder.bucket_of(ClientBuckets(5, 2, 1)) is None
    assert finder.bucket_of(UNKNOWN) is None


def test_what_sent_most_long_ago_is_a_client_again() -> None:
    finder = ClientFinder()
    for _ in range(20_000):
        finder.bucket_of(ClientBuckets(5, None, None))
    for number in range(40_000):
        finder.bucket_of(ClientBuckets(number % 4 + 5, None, None))

    assert finder.bucket_of(ClientBuckets(5, None, None)) == 5
