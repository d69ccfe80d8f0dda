"""What is made for a start after it was given up is removed, unless the server is started again."""

import asyncio

from flettner.actuators.kubernetes.late_creation import WAITS_S, LateCreations
from flettner.agent.domain.errors import ActError
from tests.support.fast_time import in_no_time


class Cluster:
    """Removes the objects of a server; the first removals may meet an API server that is away."""

    def __init__(self, *, away: int = 0) -> None:
        self.away, self.removed = away, list[tuple[str, float]]()

    async def remove(self, name: str) -> None:
        if self.away:
            self.away -= 1
            raise ActError("the API server does not answer")
        self.removed.append((name, asyncio.get_running_loop().time()))


def test_looks_until_the_api_server_has_given_the_request_up() -> None:
    cluster = Cluster(away=2)

    async def scenario() -> None:
        LateCreations(cluster.remove).expect("chat-r1")
        await asyncio.sleep(sum(WAITS_S) + 1)

    in_no_time(scenario())
    assert [name for name, _ in cluster.removed] == ["chat-r1"] * (len(WAITS_S) - 2)
    assert cluster.removed[-1][1] - cluster.removed[0][1] > 60


def test_leaves_a_server_alone_that_is_started_again() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        late = LateCreations(cluster.remove)
        late.expect("chat-r1")
        late.expect("chat-r2")
        await asyncio.sleep(1)
        late.forget("chat-r1")
        await asyncio.sleep(sum(WAITS_S))

    in_no_time(scenario())
    assert {name for name, _ in cluster.removed} == {"chat-r2"}
