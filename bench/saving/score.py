"""What a run saved, against the fewest servers that keep the SLO under the peak of the week."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from bench.loop import story
from bench.loop.clients import Clients
from bench.loop.engine import flags_of
from bench.loop.run import Run
from bench.loop.static import LATE_S, SEEDS, configured, measured
from bench.loop.world import LoadPhase, World, WorldError
from bench.virtual_site import choose_server
from flettner.simulator.text import draws
from tests.support.virtual_server import Ended, VirtualServer

PEAK_S = 900.0  # of the sweep's load
SOONEST_S = 1200.0  # until a trial can have passed: before it nothing can be saved
HOUR_S, TEN_MIN_S = 3600.0, 600.0  # the SLO is held against the requests of spans of these lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingScore:
    """The figures of one run. Times in seconds since the begin of the load."""

    world: str
    seed: int
    servers: int
    least: int  # servers that keep the SLO under the peak of the week, by a sweep
    running: int  # once the saving was in force, and before a load that the week did not have
    spared_s: float | None  # when the spared servers had stopped
    returns_s: float | None  # begin of a load that the running servers do not carry, by a sweep
    back_s: float | None  # from then until all servers had traffic
    put_back_before: int  # savings that ended before that load
    hours: tuple[bool, ...]  # of arrivals, whether each kept the SLO; the last one may be shorter
    tens: tuple[bool, ...]  # ten minutes each
    lost: int
    sent: int
    suggested: tuple[str, ...]
    notes: tuple[tuple[float, str], ...]
    cpu_s: float

    @property
    def saved(self) -> int:
        return self.servers - self.running

    @property
    def savable(self) -> int:
        return self.servers - self.least


def run(world: World, seed: int) -> SavingScore:
    return score(world, story.play(world, seed))


def score(world: World, played: Run) -> SavingScore:
    more_s = begin_of_more(world)
    until_s = world.seconds if more_s is None else more_s
    counts = [(at_s, count) for at_s, count in played.servers if at_s < until_s]
    running = counts[-1][1]
    returns_s = begin_of_return(world, running) if running < world.servers else None
    least = world.servers if until_s < SOONEST_S else least_servers(world)
    return SavingScore(
        world=played.world,
        seed=played.seed,
        servers=world.servers,
        least=least,
        running=running,
        spared_s=next((at_s for at_s, count in counts if count < world.servers), None),
        returns_s=returns_s,
        back_s=_seconds_until_back(world, played, returns_s),
        put_back_before=sum(late[1] > early[1] for early, late in pairwise(counts)),
        hours=_spans(world, played.ended, HOUR_S),
        tens=_spans(world, played.ended, TEN_MIN_S),
        lost=sum(request.outcome not in {"ok", "gave_up"} for request in played.ended),
        sent=played.sent,
        suggested=tuple(
            f"{made.rule} {dict(made.to)} at {made.at_s:.0f} s: {made.status}"
            for made in played.suggestions
            if made.klass != "note"
        ),
        notes=played.notes,
        cpu_s=played.cpu_s,
    )


def begin_of_more(world: World) -> float | None:
    """Return when the load first exceeds the peak of the week, or its mix changes; None if neither comes."""
    if len(world.mixes) > 1:
        return world.mixes[1].at_s
    return next((at_s for at_s, rate in _phases(world) if rate > (world.peak_rps or 0.0)), None)


def begin_of_return(world: World, running: int) -> float | None:
    """Return when the load is first more than so many servers carry; None if it never is."""
    more_s = begin_of_more(world)
    if more_s is None or len(world.mixes) > 1:
        return more_s
    for at_s, rate in _phases(world):
        if at_s >= more_s and not keeps(world, _serve(world, running, rate, SEEDS[0])):
            return at_s
    return None


def _phases(world: World) -> Iterator[tuple[float, float]]:
    """Yield the begin and the rate of each phase."""
    began_s = 0.0
    for phase in world.load:
        yield began_s, phase.rate
        began_s += phase.seconds


def _seconds_until_back(world: World, run: Run, returns_s: float | None) -> float | None:
    if returns_s is None:
        return None
    for at_s, shares in run.shares:
        if at_s >= returns_s and sum(weight > 0 for weight in shares.values()) == world.servers:
            return round(at_s - returns_s, 1)
    return None


def _spans(world: World, ended: Sequence[Ended], span_s: float) -> tuple[bool, ...]:
    spans: list[list[Ended]] = [[] for _ in range(ceil(world.seconds / span_s))]
    for request in ended:
        spans[int(request.arrived_s // span_s)].append(request)
    return tuple(keeps(world, span) for span in spans)


def keeps(world: World, ended: Sequence[Ended]) -> bool:
    """Whether the share of each objective is met; a request without an answer misses all of them."""
    objectives = [slo for slo in (world.slo.ttft, world.slo.itl, world.slo.e2e) if slo is not None]
    met = [0] * len(objectives)
    for request in ended:
        for at, (objective, value) in enumerate(measured(world.slo, request)):
            met[at] += request.outcome == "ok" and value is not None and value <= objective.under_s
    return all(count >= slo.share * len(ended) for count, slo in zip(met, objectives, strict=True))


def least_servers(world: World) -> int:
    """Return the fewest servers that keep the SLO under the peak of the week. Raises WorldError."""
    if world.peak_rps is None:
        raise WorldError(f"{world.name}: peak_rps is missing")
    for count in range(1, world.servers + 1):
        if all(keeps(world, _serve(world, count, world.peak_rps, seed)) for seed in SEEDS):
            return count
    raise WorldError(f"{world.name}: {world.servers} servers miss the SLO at {world.peak_rps:g} requests/s")


def _serve(world: World, count: int, rate: float, seed: int) -> list[Ended]:
    """Run `count` servers at that rate for PEAK_S, from cold."""
    peak = replace(world, load=(LoadPhase(PEAK_S, rate, world.load[0].cv),))
    flags = flags_of(world, configured(world))
    servers = {
        f"{number}": VirtualServer(
            f"{number}",
            replace(flags, seed=draws(seed, "server", number).getrandbits(32)),
            now_s=0.0,
            unix_s=0.0,
        )
        for number in range(count)
    }
    weights = [(name, 100 // count + 1) for name in servers]
    for arrival in Clients(peak, seed).until(PEAK_S):
        name = choose_server(weights, arrival.place)
        servers[name or "0"].ask(arrival.request)
    for server in servers.values():
        server.advance(PEAK_S + LATE_S)
    return [request for server in servers.values() for request in server.take_ended()]
