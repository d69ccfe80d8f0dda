"""The note on how much more load a target would carry: its numbers and its sentence."""

import pytest

from flettner.agent.domain.headroom import HOUR_S, Headroom, HourPeak, find_headroom
from flettner.performance_model.band import Band
from tests.support.fast_time import NOON

SERVER = Band(value=3.5, low=3.25, high=3.75)


def hours(count: int, peak_rps: float = 5.2) -> list[HourPeak]:
    """The last ones, with the peak in the first."""
    now = int(NOON.timestamp())
    return [
        HourPeak(at=now - age * HOUR_S, rps=peak_rps if age == count else 1.0) for age in range(count, 0, -1)
    ]


def note(
    peaks: list[HourPeak], server: Band = SERVER, servers: int = 4, price: float | None = None
) -> Headroom | None:
    return find_headroom(server, peaks, at=NOON, servers=servers, share=0.95, server_price=price)


def test_two_of_four_servers_are_enough() -> None:
    found = note(hours(168), price=2.5)

    assert found is not None
    assert (found.servers, found.enough, found.peak_rps, found.saved_per_hour) == (4, 2, 5.2, 5.0)
    assert found.capacity_rps == Band(value=14.0, low=13.0, high=15.0)
    assert found.text == (
        "keeps the SLO up to 14 requests/s (13 to 15), the peak of the last 7 days was 5.2: "
        "2 of 4 servers are enough at 95%, which would save 5 an hour"
    )


@pytest.mark.parametrize(
    ("peak_rps", "servers", "end"),
    [
        (5.2, 2, "all of 2 servers are needed"),
        (3.0, 1, "1 server is needed"),
        (3.0, 2, "1 of 2 servers is enough at 95%"),
        (6.6, 2, "3 servers instead of 2 would keep it at 95%"),
        (1.0, 2, "1 of 2 servers is enough at 95%"),
    ],
)
def test_servers_are_counted_by_the_lower_end_of_the_band(peak_rps: float, servers: int, end: str) -> None:
    found = note(hours(30, peak_rps), servers=servers)

    assert found is not None
    assert found.text.endswith(f"the peak of the last 30 hours was {peak_rps:.3g}: {end}")


def test_a_short_history_or_an_uncertain_capacity_says_nothing() -> None:
    assert note(hours(23)) is None
    assert note(hours(168), Band(value=3.5, low=1.7, high=4.0)) is None


def test_older_hours_do_not_count() -> None:
    found = note(hours(200, peak_rps=50.0))

    assert found is not None
    assert found.peak_rps == 1.0
