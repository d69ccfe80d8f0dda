"""What one client can do to the verdict: nothing.

The proxy keeps a session at one server, so whoever sends with a session chooses the side on which all of its
requests count. Chance chooses the side of any other request: its client can do to green only what it does to
blue. So each client belongs to one of GROUPS, and beside the evidence of all requests there is one

    without g   of the same seconds, without those requests of group g whose side the client chose: the ones
                with a session; where green serves alone, next to an earlier baseline, all of the group

and the smallest of them is the evidence. One client is in one group. The evidence without that group is an
e-process of other clients only, and the smallest is at most that one: whatever one client does, an equal
green is called worse with a chance of at most alpha, and a worse one passes with at most beta. A client that
brings a share s of the requests costs a sound verdict 1 / (1 - s) times the requests.

A stream whose evidence against green comes from one group alone is no verdict: the group is set aside, and
the stream goes on with the evidence without it.

Clients also differ among themselves. Where they are pinned, a side has the clients that it got, and more
requests do not change that. Pearson's dispersion of the groups at blue measures it, where no fault of green's
is, without the group that differs most, which the above covers:

    effect = sum over groups of (k - n p)^2 / (n p (1 - p)) / (groups - 1), p: the bad share of blue

All evidence is divided by it where it is beyond chance, for the part of the requests that is pinned.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import log, sqrt

from flettner.agent.domain.canary_evidence import GREEN, NO_COUNTS, Counts, EvidenceStream, Observation
from flettner.agent.domain.model import Slo
from flettner.agent.domain.request_counts import CLIENT_BUCKETS, NO_REQUESTS, ClientBucket, RequestCounts
from flettner.agent.judge.eprocess import log_sum
from flettner.agent.judge.failure_modes import count_bad

ALL = ""  # in place of a group's number: all requests
GROUPS = 16
"""Each costs time and memory. 64, one for each bucket, would save 2 to 4 % of the requests of a verdict."""
SUSPECT, INNOCENT = log(20.0), 0.0  # evidence against green with a group, and without it
LEAST_GROUP, LEAST_GROUPS = 5, 7  # requests of a group, and groups, that show a dispersion
BEYOND_CHANCE = 2.0  # standard errors of the dispersion, sqrt(2 / degrees of freedom)

OfBad = tuple[int, int]
"""Requests, bad requests."""


def divide_buckets(requests: Mapping[str, int]) -> tuple[int, ...]:
    """The group of each bucket. `requests`: of earlier ones, by bucket.

    Groups of about equal size: what is left out with the client that sends most is then little else.
    """
    groups, sizes = [0] * CLIENT_BUCKETS, [0] * GROUPS
    for bucket in sorted(range(CLIENT_BUCKETS), key=lambda bucket: -requests.get(str(bucket), 0)):
        groups[bucket] = sizes.index(min(sizes))
        sizes[groups[bucket]] += 1 + requests.get(str(bucket), 0)
    return tuple(groups)


def chosen_by_clients(
    clients: Iterable[tuple[str, Mapping[ClientBucket, RequestCounts]]], groups: Sequence[int], *, alone: bool
) -> dict[str, dict[str, RequestCounts]]:
    """The requests that are left out with each group, by group and server.

    `clients`: servers, and the requests of each. `groups`: the group of each bucket. `alone`: green has all
    the traffic.
    """
    arms: dict[str, dict[str, RequestCounts]] = {}
    for server, buckets in clients:
        for client, counts in buckets.items():
            if client.pinned or alone:
                group = arms.setdefault(str(groups[client.number]), {})
                group[server] = group.get(server, NO_REQUESTS) + counts
    return arms


def count_by_group(
    stream: EvidenceStream, observation: Observation, slo: Slo, *, alone: bool
) -> dict[str, dict[str, OfBad]]:
    """(requests, bad requests) by group and server; ALL for all requests."""
    servers = observation.arms

    def count(arms: Mapping[str, RequestCounts]) -> dict[str, OfBad]:
        return {
            server: count_bad(arm, stream.name, stream.edge_s, slo, alone=alone)
            for server, arm in arms.items()
            if server in servers
        }

    return {ALL: count(servers), **{group: count(arms) for group, arms in observation.clients.items()}}


def left_out(counts: Mapping[str, OfBad], group: Mapping[str, OfBad]) -> dict[str, OfBad]:
    """The counts by server without those of a group."""
    return {
        server: (of - group.get(server, (0, 0))[0], max(0, bad - group.get(server, (0, 0))[1]))
        for server, (of, bad) in counts.items()
    }


def sum_sides(counts: Mapping[str, OfBad]) -> Counts:
    """Blue's servers, and green."""
    green = counts.get(GREEN, (0, 0))
    blue = [of_bad for server, of_bad in counts.items() if server != GREEN]
    return Counts(sum(of for of, _ in blue), sum(bad for _, bad in blue), *green)


def note_clients(
    stream: EvidenceStream, observation: Observation, slo: Slo, *, alone: bool, phi: float
) -> EvidenceStream:
    """Add a second to the counts of the groups, admissible or not. `phi`: that of the requests."""
    if not observation.clients and not stream.clients:
        return stream
    clients = dict(stream.clients)
    for group, counts in count_by_group(stream, observation, slo, alone=alone).items():
        clients[group] = clients.get(group, NO_COUNTS).plus(sum_sides(counts))
    stream = replace(stream, clients=clients)
    effect = None if alone else _effect(stream)
    return stream if effect is None else replace(stream, effect=max(1.0, round(effect / phi, 3)))


def judged_counts(stream: EvidenceStream) -> tuple[Counts, dict[str, Counts]]:
    """The counts of this step that are judged: of all clients, and of each group. Needs ALL in `clients`."""
    groups = {group: c for group, c in stream.clients.items() if group not in (ALL, stream.set_aside)}
    aside = stream.clients.get(stream.set_aside, NO_COUNTS) if stream.set_aside else NO_COUNTS
    return stream.clients[ALL].minus(aside), groups


def _effect(stream: EvidenceStream) -> float | None:
    """The design effect of blue's groups, without the one that differs most; None if too few are known."""
    everything, groups = judged_counts(stream)
    rows = {group: (c.control, c.control_bad) for group, c in groups.items() if c.control >= LEAST_GROUP}
    if len(rows) < LEAST_GROUPS:
        return None
    least = min(_dispersion([row for group, row in rows.items() if group != aside]) for aside in rows)
    pinned = sum(counts.control for counts in groups.values())
    return 1.0 + (least - 1.0) * pinned / max(pinned, everything.control)


def _dispersion(rows: list[OfBad]) -> float:
    """Pearson's; 1 if chance explains how the groups differ."""
    total, all_bad = sum(of for of, _ in rows), sum(bad for _, bad in rows)
    if not 0 < all_bad < total:
        return 1.0
    share, freedom = all_bad / total, len(rows) - 1
    squares = sum((bad - of * share) ** 2 / of for of, bad in rows) / (share * (1 - share))
    dispersion = squares / freedom
    return dispersion if dispersion > 1 + BEYOND_CHANCE * sqrt(2 / freedom) else 1.0


def log_worse(stream: EvidenceStream) -> float:
    """The logarithm of the evidence that green is worse, whatever one client did."""
    return min(_log_lenses(every) for every in all_of(stream)) / stream.effect


def log_not_worse(stream: EvidenceStream) -> float:
    """The maximum of the evidence of this step that green is not worse, whatever one client did."""
    return min(every.requests.most_below for every in all_of(stream)) / stream.effect


def all_of(stream: EvidenceStream) -> Iterator[EvidenceStream]:
    """The stream of all clients, and those without one group."""
    yield stream
    yield from stream.without.values()


def _log_lenses(stream: EvidenceStream) -> float:
    """The mean over requests and ticks."""
    if stream.ticks is None:
        return stream.requests.log_above
    return log_sum((stream.requests.log_above, stream.ticks.log_above)) - log(2)


def set_group_aside(stream: EvidenceStream) -> EvidenceStream:
    """Judge the stream without the group from which all evidence against green comes; at most one."""
    if stream.set_aside or not stream.without or _log_lenses(stream) < SUSPECT:
        return stream
    group, without = min(stream.without.items(), key=lambda item: _log_lenses(item[1]))
    if _log_lenses(without) > INNOCENT:
        return stream
    return replace(without, set_aside=group, clients=stream.clients, effect=stream.effect)
