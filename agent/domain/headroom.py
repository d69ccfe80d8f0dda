"""How much more load a target would carry, beside the largest of its last days: a note, never a change."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil

from flettner.performance_model.band import Band

HOUR_S = 3600
WEEK_HOURS = 7 * 24
LEAST_HOURS = 24  # a load has a day: fewer hours do not show its peak
LEAST_LOW = 0.5  # of the capacity, that the lower end of its band must reach to be said


@dataclass(frozen=True, slots=True, kw_only=True)
class HourPeak:
    """The busiest minute of an hour."""

    at: int  # Unix time of the start of the hour, s
    rps: float  # requests per second of all servers
    kv_tokens: float | None = None  # in the KV cache of an engine, in its fullest minute; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPeak:
    """The most tokens in the KV cache of an engine over the last week, by the mean of a minute.

    Tokens, as a share would be of the cache of those days.
    """

    tokens: float
    hours: int  # that are known


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """Requests per second of all servers. `enough`: the least number of servers that carry the peak."""

    made_at: datetime
    capacity_rps: Band  # with the present servers
    share: float  # of the requests, that the objectives promise
    peak_rps: float
    hours: int  # that the peak is of
    servers: int
    enough: int
    saved_per_hour: float | None = None  # by the servers that can be spared; None: none, or no price is set
    extrapolation: str = ""  # why the capacity is less certain than its band says
    certain_rps: float | None = None  # of one server, up to which its steps are like those of the law's fit
    recorded_rps: float = 0.0  # of all servers, in the load that the capacity is of
    cheaper: "CheaperCard | None" = None  # the cheapest way to carry the peak; None: none costs less
    text: str = ""  # all of it in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class CheaperCard:
    """Servers on another card that carry the peak of the week. Prices are for an hour, of all of them."""

    card: str
    servers: int
    price: float
    instead_of: float  # of as many present servers as carry it


def find_headroom(
    server_rps: Band,
    peaks: Sequence[HourPeak],
    *,
    at: datetime,
    servers: int,
    share: float,
    server_price: float | None = None,
    extrapolation: str = "",
    certain_rps: float | None = None,
    recorded_rps: float = 0.0,
    cards: Sequence[tuple[str, Band, float]] = (),
) -> Headroom | None:
    """None where the history is too short or the band of the capacity, `server_rps`, is too wide.

    Servers are counted by the lower end of the band. `server_price`: of a server for an hour. `cards`: others
    with the requests per second of a server on them, and its price.
    """
    since_s = at.timestamp() - WEEK_HOURS * HOUR_S
    week = [peak for peak in peaks if peak.at >= since_s]
    if len(week) < LEAST_HOURS or server_rps.low < LEAST_LOW * server_rps.value or servers < 1:
        return None
    peak_rps = max(peak.rps for peak in week)
    enough = max(1, ceil(peak_rps / server_rps.low))
    spare = max(0, servers - enough)
    saved = server_price * spare if server_price is not None and spare else None
    capacity = server_rps.times(servers)
    cheaper = None if server_price is None else _find_cheaper(cards, peak_rps, server_price * enough)
    return Headroom(
        made_at=at,
        capacity_rps=capacity,
        share=share,
        peak_rps=peak_rps,
        hours=len(week),
        servers=servers,
        enough=enough,
        saved_per_hour=saved,
        extrapolation=extrapolation,
        certain_rps=certain_rps,
        recorded_rps=recorded_rps,
        cheaper=cheaper,
        text=(
            f"keeps the SLO up to {capacity.value:.3g} requests/s "
            f"({capacity.low:.3g} to {capacity.high:.3g}), "
            f"the peak of the last {_describe_span(len(week))} was {peak_rps:.3g}: "
            f"{_describe_servers(enough, servers, share)}{_describe_saving(saved)}"
            f"{_describe_cheaper(cheaper)}" + (f"; less certain: {extrapolation}" if extrapolation else "")
        ),
    )


def _find_cheaper(
    cards: Sequence[tuple[str, Band, float]], peak_rps: float, price: float
) -> CheaperCard | None:
    """The cheapest one, if it costs less than `price`; counted as the present servers are."""
    cheapest = None
    for card, rps, each in cards:
        if rps.low < LEAST_LOW * rps.value or rps.low <= 0:
            continue
        servers = max(1, ceil(peak_rps / rps.low))
        if servers * each < (cheapest.price if cheapest is not None else price):
            cheapest = CheaperCard(card=card, servers=servers, price=servers * each, instead_of=price)
    return cheapest


def _describe_cheaper(cheaper: CheaperCard | None) -> str:
    if cheaper is None:
        return ""
    return (
        f"; by the data sheet {cheaper.servers} on {cheaper.card} would carry it for {cheaper.price:.3g} an "
        f"hour instead of {cheaper.instead_of:.3g}"
    )


def _describe_span(hours: int) -> str:
    return f"{hours} hours" if hours < 2 * 24 else f"{round(hours / 24)} days"


def _describe_servers(enough: int, servers: int, share: float) -> str:
    all_servers = f"{servers} server{'s' if servers > 1 else ''}"
    if enough > servers:
        return f"{enough} servers instead of {servers} would keep it at {share:.0%}"
    if enough < servers:
        return f"{enough} of {all_servers} {'is' if enough == 1 else 'are'} enough at {share:.0%}"
    return f"{'all of ' if servers > 1 else ''}{all_servers} {'are' if servers > 1 else 'is'} needed"


def _describe_saving(saved: float | None) -> str:
    return "" if saved is None else f", which would save {saved:.3g} an hour"
