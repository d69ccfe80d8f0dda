"""The sentences in which the judge reports its evidence."""

from math import exp

from flettner.agent.domain.canary_evidence import EvidenceStream

SHORT_S = 120.0  # longer times are told in minutes, and as many minutes in hours
ROUND = 10  # no decimals from here on
MOST_ODDS = 10_000
BAD_ONES = {
    "errors": "failed or cut",
    "stalled": "stalled before the first token",
    "gave_up": "abandoned by the client",
    "refused": "refused (status 400 to 499)",
    "ttft": "with a first token after {edge}",
    "itl": "with more than {edge} between tokens",
    "e2e": "longer than {edge}",
}


def describe_counts(stream: EvidenceStream) -> str:
    """As in "green: 37 of 412 requests with a first token after 500 ms, blue: 9 of 1,230".

    A group that is set aside adds "; one client, with 37 of green's 40, is not judged".
    """
    counts = stream.counted
    what = BAD_ONES[stream.name].format(edge=describe_duration(stream.edge_s or 0.0))
    blue = (
        f"blue: {counts.control_bad:,} of {counts.control:,}"
        if counts.control
        else f"blue's baseline: {stream.usual:.1%}"
    )
    aside = stream.clients.get(stream.set_aside) if stream.set_aside else None
    unjudged = (
        f"; one client, with {aside.green_bad:,} of green's {aside.green:,}, is not judged" if aside else ""
    )
    return f"green: {counts.green_bad:,} of {counts.green:,} requests {what}, {blue}{unjudged}"


def describe_chance(log_worse: float, margin: float) -> str:
    """The probability of the evidence, in a sentence."""
    odds = exp(min(log_worse, 30.0))
    return (
        f"chance of this if green were worse by at most {describe_points(margin)}: under 1 in {int(odds):,}"
    )


def describe_points(share: float) -> str:
    value = f"{100 * share:.2g}"
    return f"{value} point" if value == "1" else f"{value} points"


def describe_duration(seconds: float) -> str:
    """As in "500 ms", "45 s", "32 min", "2.5 h"."""
    if 0 < seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < SHORT_S:
        return f"{seconds:.3g} s"
    value, unit = (seconds / 60, "min") if seconds < 60 * SHORT_S else (seconds / 3600, "h")
    return f"{value:.0f} {unit}" if value >= ROUND else f"{value:.2g} {unit}"


def describe_odds(log_e: float, needed: float) -> str:
    """As in "12 of 100"; how far it is above any threshold says nothing to a reader."""
    odds = exp(min(max(log_e, -4.6), 20.0))
    if odds >= MOST_ODDS:
        return f"over {MOST_ODDS:,} of {exp(needed):.0f}"
    return f"{odds:,.0f} of {exp(needed):.0f}" if odds >= ROUND else f"{odds:.2g} of {exp(needed):.0f}"
