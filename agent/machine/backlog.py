"""Whether a queue that an earlier peak of load left behind empties by itself. Pure."""

from math import inf

from flettner.agent.domain.reading import Reading

SPARE = 1.1  # requests that end over those that arrive: with less, a queue hardly gets shorter
TWICE = (
    2.0  # the same where the mean of the last minutes still holds the peak: a lull between bursts is no end
)
HARDLY = 1.1  # the second half of a window over the first: the end of the peak is in it
BACKLOG_S = 30.0  # a queue of more arrivals than of this time is no chance fluctuation
SOON_S = 1800.0  # the hold step of the default plan: a later change would find no queue any more


def emptied_in_s(reading: Reading) -> float:
    """Seconds until a backlog is served at the pace of the window; infinite if it is not, or not known."""
    ended = sum(reading.health.ended.values()) / reading.span_s
    now, lasting = reading.work.arrivals_per_s, reading.work.lasting_arrivals_per_s
    if now is None or lasting is None or not ended or now >= ended:
        return inf
    return min(
        (
            reading.waiting.late / (ended - arriving)
            for arriving, least in ((lasting, SPARE), (now, TWICE))
            if ended >= least * arriving and reading.waiting.high >= max(1.0, BACKLOG_S * arriving)
        ),
        default=inf,
    )


def why_not_now(reading: Reading) -> str:
    """Why a queue needs no change; empty if it does, or if none is known."""
    left_s = emptied_in_s(reading)
    if left_s > SOON_S:
        return _why_not_yet(reading)
    ended = sum(reading.health.ended.values()) / reading.span_s
    return (
        f"the queue of an earlier load empties by itself in about {max(1.0, left_s / 60):.0f} min: "
        f"{ended:.2g} requests/s end, {reading.work.arrivals_per_s or 0.0:.2g} arrive"
    )


def _why_not_yet(reading: Reading) -> str:
    """Why the window says nothing of a queue: the load fell in it, and the queue hardly grows."""
    now, lasting = reading.work.arrivals_per_s, reading.work.lasting_arrivals_per_s
    waiting, running = reading.waiting, reading.running
    grows = waiting.late + running.late > HARDLY * (waiting.early + running.early)
    if now is None or not lasting or grows or waiting.low <= 0 or TWICE * now > lasting:
        return ""
    return f"the load fell from {lasting:.2g} to {now:.2g} requests/s: its queue may empty by itself"
