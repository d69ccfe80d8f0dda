"""Request counts as journals hold them."""

from pydantic import TypeAdapter

from flettner.agent.domain.reading import Request
from flettner.agent.domain.request_counts import RequestCounts, count_requests

COUNTS = TypeAdapter(RequestCounts)


def test_counts_that_are_written_are_read_as_they_were() -> None:
    counts = RequestCounts(
        total=90, errors=9, stalled=20, queued=11, stalled_ended=10, stalled_failed=4, late=30
    )

    assert COUNTS.validate_json(COUNTS.dump_json(counts)) == counts
    assert COUNTS.validate_json(COUNTS.dump_json(counts + counts)) == counts + counts


def test_callers_without_a_right_are_counted_nowhere() -> None:
    turned_away = [
        Request(server="r0", outcome="refused", status=status, duration_s=0.1) for status in (401, 403, 400)
    ]

    assert count_requests(turned_away) == RequestCounts(refused=1)
