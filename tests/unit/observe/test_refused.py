"""Requests that were refused with status 400, and whether they are the long ones."""

from collections.abc import Sequence

import pytest

from flettner.agent.domain.reading import RefusedRequests, Request, RequestOutcome
from flettner.agent.observe.refused import summarize_refused


def ended(status: int, *sizes: int | None) -> list[Request]:
    outcome: RequestOutcome = "ok" if status == 200 else "refused"
    return [
        Request(server="chat-r0", outcome=outcome, status=status, duration_s=0.1, request_bytes=size)
        for size in sizes
    ]


@pytest.mark.parametrize(
    ("requests", "summary"),
    [
        pytest.param(ended(200, 10, 20), None, id="none is refused"),
        pytest.param(ended(401, 90), None, id="another refusal"),
        pytest.param(
            [*ended(200, *range(100, 200)), *ended(400, 300, 250)],
            RefusedRequests(count=2, accepted=100, longer=1.0, longest_bytes=300, accepted_bytes=149.5),
            id="the long ones",
        ),
        pytest.param(
            [*ended(200, *range(100, 200)), *ended(400, 110, 250)],
            RefusedRequests(count=2, accepted=100, longer=0.5, longest_bytes=250, accepted_bytes=149.5),
            id="of all lengths",
        ),
        pytest.param(
            [*ended(200, 100, None), *ended(400, 300)],
            RefusedRequests(count=1, accepted=2, longest_bytes=300),
            id="sizes of some are not recorded",
        ),
        pytest.param(
            ended(400, 300), RefusedRequests(count=1, accepted=0, longest_bytes=300), id="none is accepted"
        ),
    ],
)
def test_refused_requests_are_compared_with_the_accepted_ones(
    requests: Sequence[Request], summary: RefusedRequests | None
) -> None:
    assert summarize_refused(requests) == summary
