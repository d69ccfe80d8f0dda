"""How steady the servers of one setting are: what chance alone makes of equal servers, for the judge."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the last hours say of one stream of good and bad requests.

    A tick is 15 s of one server with 5 requests or more.
    """

    phi: float  # design effect of the requests, from 1: their evidence is worth so many times less
    tick_edge: float  # 85th percentile of the bad share of a tick
    tick_share: float  # share of the ticks that lie above it
    tick_phi: float  # design effect of the ticks, from 1
    tick_requests: float  # mean requests of a tick
    ticks: int
