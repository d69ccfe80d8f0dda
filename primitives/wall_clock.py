"""The host's wall clock, which may be set at any time: for times that other programs or people compare."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - where the clock enters
