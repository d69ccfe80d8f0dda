"""Request counts as journals hold them."""

from pydantic import TypeAdapter

from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.judge.attainment import count_missed

COUNTS = TypeAdapter(RequestCounts)


def test_stalled_requests_of_older_journals_are_no_errors_where_they_were_in_a_queue() -> None:
    """There, a request without a first token for 10 s was an error."""
    found = COUNTS.validate_python({"total": 193, "errors": 129, "queued": 120, "late": 64, "gave_up": 7})

    assert (found.total, found.errors, found.stalled, found.queued) == (73, 9, 120, 120)
    assert (found.asked, count_missed(found)) == (200, (200, 200))


def test_counts_that_are_written_are_read_as_they_were() -> None:
    counts = RequestCounts(
        total=90, errors=9, stalled=20, queued=11, stalled_ended=10, stalled_failed=4, late=30
    )

    assert COUNTS.validate_json(COUNTS.dump_json(counts)) == counts
    assert COUNTS.validate_json(COUNTS.dump_json(counts + counts)) == counts + counts
