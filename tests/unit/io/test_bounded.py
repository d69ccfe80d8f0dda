"""What is read of an answer ends: after so many bytes, and at so deep a nesting."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.io.bounded import gathered, json_in


@given(
    st.binary(max_size=200)
    | st.integers(0, 100_000).map(lambda depth: b'[{"a":' * depth)
    | st.integers(0, 20_000).map(lambda digits: b"9" * digits)
)
def test_no_bytes_are_worse_than_a_value_error(body: bytes) -> None:
    try:
        json_in(body)
    except ValueError:
        return


@given(st.lists(st.binary(max_size=20)))
def test_chunks_are_put_together_in_their_order(chunks: list[bytes]) -> None:
    assert gathered(chunks, at_most=2000) == b"".join(chunks)


def test_an_endless_body_is_not_read_to_its_end() -> None:
    taken = []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield b"x" * 1000

    with pytest.raises(ValueError, match="larger than 4096 bytes"):
        gathered(endless(), at_most=4096)

    assert len(taken) == 5
