"""The busiest minute of the known hours, which a calm window is held against."""

from flettner.agent.domain.headroom import HOUR_S, WEEK_HOURS, KvPeak
from flettner.agent.observe.minute_rows import MinuteRow
from flettner.agent.runtime.peak_hours import PeakHours


def test_the_busiest_minute_of_the_last_week_is_known_and_an_older_one_forgotten() -> None:
    peaks = PeakHours()
    assert peaks.highest_rps() is None

    peaks.merge({0: 9.0, HOUR_S: 4.0, 2 * HOUR_S: 6.0})
    assert peaks.highest_rps() == 9.0

    peaks.merge({WEEK_HOURS * HOUR_S: 1.0})
    assert peaks.highest_rps() == 6.0


def test_the_fullest_kv_cache_is_that_of_the_hours_that_have_one() -> None:
    peaks = PeakHours()
    peaks.merge({0: 9.0})
    assert peaks.fullest_kv() is None

    for at, tokens in ((HOUR_S, 200.0), (HOUR_S + 60, 300.0), (2 * HOUR_S, 100.0), (2 * HOUR_S + 60, None)):
        peaks.add(MinuteRow(at=at), tokens)

    assert peaks.fullest_kv() == KvPeak(tokens=300.0, hours=2)
