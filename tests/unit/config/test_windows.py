"""`[windows]` and `[targets.windows]` in the file."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from flettner.agent.config.loader import parse_config
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.windows import Windows

FILE = """
[[targets]]
name = "chat"
[targets.engine]
kind = "process"
serving = "http://127.0.0.1:8000"
[targets.windows]
{target}
[windows]
{host}
"""
BERLIN = 'timezone = "Europe/Berlin"'


def windows(host: str = "", target: str = "") -> Windows:
    return parse_config(FILE.format(host=host, target=target), here=Path("/etc")).targets[0].windows


def test_a_target_has_the_time_zone_of_the_host_unless_it_has_its_own() -> None:
    at = datetime(2026, 7, 1, 7, 30, tzinfo=UTC)  # 09:30 in Berlin
    allowed = 'allowed = ["daily 09:00-17:00"]'

    assert windows(BERLIN, allowed).is_open(at)
    assert not windows(BERLIN, f'{allowed}\ntimezone = "UTC"').is_open(at)
    assert not windows("", allowed).is_open(at)


def test_a_holiday_is_frozen_for_the_whole_day() -> None:
    made = windows(f'{BERLIN}\nholidays = [2026-05-01]\noutside = "refuse"\nedge = "roll_back"')

    assert not made.is_open(datetime(2026, 5, 1, 21, 59, tzinfo=UTC))
    assert made.is_open(datetime(2026, 5, 1, 22, 0, tzinfo=UTC))
    assert windows().is_open(datetime(2026, 5, 1, 12, 0, tzinfo=UTC))


@pytest.mark.parametrize(
    ("host", "target", "problem"),
    [
        ('timezone = "Berlin"', "", r"\[windows\] timezone: must be a name like"),
        ("", 'allowed = ["0 9 * * 1-5"]', r"\[targets.windows\] must be like"),
        ('frozen = ["Mon 9-17"]', "", r"\[windows\] must be like"),
        ("", 'edge = "stop"', r"\[targets.windows\] edge"),
        ('freeze = ["Mon"]', "", r"\[windows\] freeze: unknown key"),
    ],
)
def test_an_invalid_window_is_named(host: str, target: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        windows(host, target)
