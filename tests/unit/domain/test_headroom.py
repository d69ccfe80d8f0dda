"""The note on how much more load a target would carry: its numbers and its sentence."""

import pytest

from flettner.agent.domain.headroom import HOUR_S, CheaperCard, Headroom, HourPeak, find_headroom
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


def test_the_cheapest_card_that_carries_the_peak_is_named() -> None:
    cards = [
        ("L4", Band(value=1.0, low=0.8, high=1.2), 0.8),  # 7 for 5.6
        ("A10", Band(value=3.0, low=2.6, high=3.2), 1.2),  # 2 for 2.4
        ("L40S", Band(value=6.0, low=5.4, high=6.5), 2.0),  # 1 for 2
        ("T4", Band(value=6.0, low=1.0, high=9.0), 0.1),  # nothing is known of it
    ]

    found = find_headroom(SERVER, hours(168), at=NOON, servers=4, share=0.95, server_price=2.5, cards=cards)

    assert found is not None
    assert found.cheaper == CheaperCard(card="L40S", servers=1, price=2.0, instead_of=5.0)
    assert found.text.endswith("by the data sheet 1 on L40S would carry it for 2 an hour instead of 5")


def test_no_card_is_named_that_costs_as_much_or_where_no_price_is_known() -> None:
    card = ("L40S", Band(value=3.5, low=3.25, high=3.75), 2.5)

    for price in (2.5, None):
        found = find_headroom(
            SERVER, hours(168), at=NOON, servers=4, share=0.95, server_price=price, cards=[card]
        )
        assert found is not None
        assert found.cheaper is None
