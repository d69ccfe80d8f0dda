"""A pod keeps its newest records, and says where some are missing."""

import asyncio
from typing import Any

import msgpack

from flettner.actuators.envoy.pod.records import RecordBuffer

Item = Any


async def read(
    buffer: RecordBuffer, count: int, *, boot: str = "", after: int = 0, since_s: float = 60.0
) -> list[Item]:
    """The first items that a follower gets."""
    items: list[Item] = []
    unpacker = msgpack.Unpacker()
    async for piece in buffer.follow(boot, after, since_s):
        unpacker.feed(piece)
        items += list(unpacker)
        if len(items) >= count:
            return items
    return items


def message(text: str) -> bytes:
    return bytes(msgpack.packb(text))


async def test_a_follower_that_comes_back_goes_on_where_it_was() -> None:
    buffer = RecordBuffer()
    buffer.add(message("a"))
    buffer.add(message("b"))

    first = await read(buffer, 3)
    buffer.add(message("c"))
    then = await read(buffer, 2, boot=buffer.boot, after=2)

    assert first == [{"boot": buffer.boot, "after": 0, "lost": False}, [1, "a"], [2, "b"]]
    assert then == [{"boot": buffer.boot, "after": 2, "lost": False}, [3, "c"]]


async def test_a_new_follower_gets_no_records_of_before_its_time() -> None:
    buffer = RecordBuffer()
    buffer.add(message("old"))
    await asyncio.sleep(0.05)

    buffer.add(message("new"))
    items = await read(buffer, 2, since_s=0.03)

    assert items[1:] == [[2, "new"]]


async def test_records_that_had_no_room_are_a_gap() -> None:
    buffer = RecordBuffer(most_bytes=10)
    for text in "abcdefgh":
        buffer.add(message(text))  # of two bytes

    late = await read(buffer, 2, boot=buffer.boot, after=1)
    new = await read(buffer, 2)

    assert late[0]["lost"] is True
    assert late[1] == [4, "d"]
    assert new[0]["lost"] is True


async def test_a_slow_follower_learns_what_it_missed() -> None:
    buffer = RecordBuffer(most_bytes=10)
    following = buffer.follow("", 0, 60.0)
    await anext(following)
    for text in "abcdefgh":
        buffer.add(message(text))

    assert msgpack.unpackb(await anext(following)) == {"lost": True}
    assert msgpack.unpackb(await anext(following)) == [4, "d"]


async def test_an_idle_follower_hears_that_the_pod_lives_and_then_that_it_has_ended() -> None:
    buffer = RecordBuffer()

    following = asyncio.create_task(read(buffer, 99))
    await asyncio.sleep(1.2)
    buffer.end()

    assert (await following)[1:] == [None, {"end": True}]


async def test_unreadable_records_are_a_gap() -> None:
    buffer = RecordBuffer()
    buffer.add(message("a"))
    buffer.lose()
    buffer.add(message("b"))

    items = await read(buffer, 2, boot=buffer.boot, after=1)

    assert items[0]["lost"] is True
    assert items[1] == [3, "b"]
