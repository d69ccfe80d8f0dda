"""Limits on responses: total size and nesting depth."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.primitives.bounded import join_chunks, parse_json


@given(
    st.binary(max_size=200)
    | st.integers(0, 100_000).map(lambda depth: b'[{"a":' * depth)
    | st.integers(0, 20_000).map(lambda digits: b"9" * digits)
)
def test_raises_nothing_but_value_error_on_any_bytes(body: bytes) -> None:
    try:
        parse_json(body)
    except ValueError:
        return


@given(st.lists(st.binary(max_size=20)))
def test_joins_chunks_in_order(chunks: list[bytes]) -> None:
    assert join_chunks(chunks, at_most=2000) == b"".join(chunks)


def test_stops_reading_an_endless_body_at_the_limit() -> None:
    taken = []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield b"x" * 1000

    with pytest.raises(ValueError, match="larger than 4096 bytes"):
        join_chunks(endless(), at_most=4096)

    assert len(taken) == 5
