"""Whether a change can end a queue, or only more servers can. Pure."""

from math import inf

from flettner.agent.domain.model import Slo
from flettner.agent.domain.reading import Reading
from flettner.policies.shared.causes import recomputed_share
from flettner.policies.shared.sequence_demand import STABLE, find_held_sequences, needed_sequences

CATCH_UP = 1.1  # requests served over those that arrive: with less, a queue hardly gets shorter


def can_end_queue(reading: Reading, *, gain: float) -> bool:
    """True unless a queue lasts even if `gain` times as many requests are served, or ends without that.

    The arrivals are those of the last minutes: in a short window bursts hide an overload, and so does the end
    of a load. As far as is known.
    """
    waiting, served = reading.waiting, sum(reading.health.ended.values())
    arriving = reading.work.lasting_arrivals_per_s
    lasts = waiting.low > 0 or waiting.late > STABLE * waiting.early
    if not lasts or arriving is None or not served:
        return True
    if empties_by_itself(reading):
        return False
    return gain * served / reading.span_s >= CATCH_UP * arriving


def empties_by_itself(reading: Reading) -> bool:
    """True if the server's requests get fewer by more than still arrive: what waits is left of a peak."""
    least = 1 / reading.span_s  # a request: less is rounding
    return _growth(reading) < -max(reading.work.arrivals_per_s or 0.0, least)


def can_be_relieved(reading: Reading, slo: Slo) -> bool:
    """True if fewer sequences at once would end the queue: as many as fit the KV cache, without preemptions.

    As far as is known. A gap between tokens may shrink while the queue grows.
    """
    needed, share = needed_sequences(reading), recomputed_share(reading)
    if needed is not None and needed > find_held_sequences(reading):
        return False
    if (slo.ttft is None and slo.e2e is None) or share is None:
        return True
    return can_end_queue(reading, gain=1 / (1 - share) if share < 1 else inf)


def _growth(reading: Reading) -> float:
    """Requests per second by which the number of requests in the server grows."""
    both = (reading.waiting, reading.running)
    return sum(count.late - count.early for count in both) / (reading.span_s / 2)
