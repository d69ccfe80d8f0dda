"""Section `clients`: the full judge, where clients choose the server of their requests.

Two servers at 8 rps; green replaces one. As in section `rollouts`, 1 % of the requests fail, are abandoned,
are refused, and miss each objective. One client owns a part of all requests, and is pinned to one server by
its session; all of its requests are bad in one way. Or all clients have sessions: 200 of them, whose requests
are as 1/rank (Zipf), so that the first owns 17 %. `blind`: the same requests without their clients, as a
judge of requests sees them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from math import inf
from random import Random

from bench.judge.hours import finite
from bench.judge.ours import NOON
from bench.judge.rollouts import RPS, SLO, STARTS_S, USUAL, arm
from bench.judge.runs import Pool, Row
from bench.judge.traffic import poisson, quantiles, seeded
from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.canary_evidence import GREEN, CanaryEvidence, Observation
from flettner.agent.domain.model import Step
from flettner.agent.domain.request_counts import CLIENT_BUCKETS, NO_REQUESTS, ClientBucket, RequestCounts
from flettner.agent.judge.canary.clients import chosen_by_clients, divide_buckets
from flettner.agent.judge.canary.verdict import AnytimeJudge
from flettner.agent.judge.failure_modes import stream_names

BLUE = "0"
CLIENTS = 200
SHARE = 0.1  # of the requested runs
BESIDE = Step(weight=50, requests=100, at_least_s=60.0, at_most_s=2700.0, parity=50)
HOLD = Step(weight=100, requests=100, at_least_s=300.0, at_most_s=7200.0, parity=50)
INDEPENDENT = Calibration(
    phi=1.0, tick_edge=0.07, tick_share=0.1, tick_phi=1.0, tick_requests=60.0, ticks=960
)
KNOWN = dict.fromkeys(stream_names(SLO), INDEPENDENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client beside the others. `share`: of all requests; `side`: of its session; empty: it has none."""

    share: float
    does: str = "refused"
    side: str = GREEN
    pinned: bool = True

    def requests(self, random: Random) -> RequestCounts:
        of = poisson(random, RPS * self.share)
        return {
            "refused": arm(0, 0, 0, of, 0, 0, 0),
            "failing": arm(of, of, 0, 0, 0, 0, 0),
            "leaving": arm(0, 0, of, 0, 0, 0, 0),
            "slow": arm(of, 0, 0, 0, of, of, of),
            "good": arm(of, 0, 0, 0, 0, 0, 0),
        }[self.does]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`green_errors`: share of green's requests that fail. `sessions`: all clients have one. `uneven`: a
    tenth of the clients bring 10 % bad requests, the others none."""

    green_errors: float = USUAL
    client: Client | None = None
    sessions: bool = False
    uneven: bool = False
    step: Step = BESIDE
    minutes: int = 20
    blind: bool = False
    runs: float = 1.0


def _cases() -> Iterator[tuple[str, Case]]:
    for does in ("refused", "failing", "leaving", "slow"):
        for share in (0.01, 0.05, 0.2, 0.6):
            yield f"equal, {share:.0%} {does} at green", Case(client=Client(share=share, does=does))
    for share in (0.05, 0.6):
        yield f"equal, {share:.0%} good at blue", Case(client=Client(share=share, does="good", side=BLUE))
    yield "equal, 5% failing at blue", Case(client=Client(share=0.05, does="failing", side=BLUE))
    for does in ("refused", "failing", "slow"):
        for share in (0.05, 0.4):
            client = Client(share=share, does=does, pinned=False)
            yield f"equal, hold step, {share:.0%} {does}", Case(client=client, step=HOLD)
    client = Client(share=0.05)
    yield "equal, 5% refused at green, blind", Case(client=client, blind=True, runs=0.5)
    few = 0.25
    yield "equal, sessions", Case(sessions=True, runs=few)
    yield "equal, sessions, uneven clients", Case(sessions=True, uneven=True, runs=few)
    yield "equal, sessions, uneven clients, blind", Case(sessions=True, uneven=True, blind=True, runs=few)
    for share in (0.05, 0.2):
        client = Client(share=share, does="failing", side=BLUE)
        yield f"1 to 5 %, {share:.0%} failing at blue", Case(green_errors=0.05, client=client, runs=few)
    client = Client(share=0.4, does="good")
    yield "1 to 5 %, 40% good at green", Case(green_errors=0.05, client=client, runs=few)
    for errors in (0.03, 0.05, 0.1, 0.5):
        for sessions in (False, True):
            title = f"1 to {errors:.0%}" + (", sessions" if sessions else "")
            for blind in (True, False) if sessions else (False,):
                case = Case(green_errors=errors, sessions=sessions, blind=blind, minutes=40, runs=few)
                yield title + (", blind" if blind else ""), case


CASES: Mapping[str, Case] = dict(_cases())


@dataclass(frozen=True, slots=True)
class Part:
    """The clients of one bucket at one server. `of`: their share of all requests."""

    server: str
    client: ClientBucket
    of: float
    bad: float  # mean share of their requests that are bad in one way


@dataclass(slots=True)
class Rollout:
    """One step, second by second."""

    case: Case
    run: int
    requests: int = 0  # of green
    evidence: CanaryEvidence = field(init=False)
    _random: Random = field(init=False)
    _parts: list[Part] = field(init=False)

    def __post_init__(self) -> None:
        self._random = seeded("clients", self.case, self.run)
        self.evidence = CanaryEvidence(calibration=KNOWN, baseline_s=STARTS_S)
        self._parts = list(self._population())

    def play(self) -> tuple[float, float, int]:
        """Return the seconds to the rollback and to the pass, inf for none, and green's requests."""
        case, judge, at = self.case, AnytimeJudge(), NOON
        seconds = [self._alone() for _ in range(STARTS_S)]
        baseline = sum((arm for second in seconds for arm in second.values()), NO_REQUESTS)
        groups = divide_buckets(
            {bucket: sum(second[bucket].asked for second in seconds) for bucket in seconds[0]}
        )
        green = blue = NO_REQUESTS
        for second in range(1, case.minutes * 60 + 1):
            at += timedelta(seconds=1)
            arms, clients = self._second()
            green, blue = green + arms[GREEN], blue + arms[BLUE]
            self.requests += arms[GREEN].asked
            self.evidence, verdict = judge.update(
                self.evidence,
                step=case.step,
                slo=SLO,
                observation=Observation(
                    at=at,
                    green=arms[GREEN],
                    blue={BLUE: arms[BLUE]},
                    clients={}
                    if case.blind
                    else chosen_by_clients(clients.items(), groups, alone=case.step is HOLD),
                ),
                green=green,
                blue=blue,
                baseline=baseline,
            )
            if verdict.kind == "fail":
                return second, inf, self.requests
            if verdict.kind == "pass":
                return inf, second, self.requests
        return inf, inf, self.requests

    def _second(self) -> tuple[dict[str, RequestCounts], dict[str, dict[ClientBucket, RequestCounts]]]:
        arms = {GREEN: NO_REQUESTS, BLUE: NO_REQUESTS}
        clients: dict[str, dict[ClientBucket, RequestCounts]] = {GREEN: {}, BLUE: {}}
        for part in self._parts:
            errors = self.case.green_errors if part.server == GREEN else USUAL
            counts = self._requests(part, errors)
            self._add(arms, clients, part.server, part.client, counts)
        if one := self.case.client:
            self._add(arms, clients, one.side, ClientBucket(3, one.pinned), one.requests(self._random))
        return arms, clients

    @staticmethod
    def _add(
        arms: dict[str, RequestCounts],
        clients: dict[str, dict[ClientBucket, RequestCounts]],
        server: str,
        client: ClientBucket,
        counts: RequestCounts,
    ) -> None:
        if counts.asked:
            arms[server] += counts
            clients[server][client] = clients[server].get(client, NO_REQUESTS) + counts

    def _alone(self) -> dict[str, RequestCounts]:
        """A second of blue with all the traffic by bucket, before the one client begins."""
        counts = dict.fromkeys(map(str, range(CLIENT_BUCKETS)), NO_REQUESTS)
        for part in self._parts:
            counts[str(part.client.number)] += self._requests(part, USUAL)
        return counts

    def _population(self) -> Iterator[Part]:
        others = 1 - (self.case.client.share if self.case.client else 0.0)
        green = self.case.step.weight / 100
        if not self.case.sessions:
            for server, weight in ((GREEN, green), (BLUE, 1 - green)):
                for number in range(CLIENT_BUCKETS):
                    client = ClientBucket(number, pinned=False)
                    yield Part(server, client, others * weight / CLIENT_BUCKETS, USUAL)
            return
        total = sum(1 / rank for rank in range(1, CLIENTS + 1))
        parts: dict[tuple[str, int], tuple[float, float]] = {}
        for rank in range(1, CLIENTS + 1):
            server = GREEN if self._random.random() < green else BLUE
            key = server, self._random.randrange(CLIENT_BUCKETS)
            of, bad = parts.get(key, (0.0, 0.0))
            share = others / rank / total
            bad_share = (0.1 if self._random.random() < 0.1 else 0.0) if self.case.uneven else USUAL  # noqa: PLR2004
            parts[key] = of + share, bad + share * bad_share
        for (server, number), (of, bad) in parts.items():
            yield Part(server, ClientBucket(number, pinned=True), of, bad / of)

    def _requests(self, part: Part, errors: float) -> RequestCounts:
        of = poisson(self._random, RPS * part.of)
        if not of:
            return NO_REQUESTS
        bad: Callable[[int, float], int] = self._bad
        gave_up = bad(of, USUAL)
        refused = bad(of - gave_up, USUAL)
        total = of - gave_up - refused
        failed = bad(total, part.bad + errors - USUAL)
        return arm(total, failed, gave_up, refused, *(bad(total - failed, USUAL) for _ in range(3)))

    def _bad(self, of: int, share: float) -> int:
        return sum(self._random.random() < share for _ in range(of))


def rollout(name: str, run: int) -> tuple[float, float, int]:
    return Rollout(CASES[name], run).play()


def measure(pool: Pool, runs: int) -> Iterator[tuple[str, Row]]:
    for name, case in CASES.items():
        many = max(2, round(runs * SHARE * case.runs))
        rows = pool.of(partial(rollout, name), many)
        until = [float(requests) if back_s < inf else inf for back_s, _, requests in rows]
        yield (
            name,
            {
                "runs": many,
                "back": sum(back_s < inf for back_s, _, _ in rows) / many,
                "passed": sum(passed_s < inf for _, passed_s, _ in rows) / many,
                "requests": finite(quantiles(until, 0.5, 0.9)),
                "passed_s": finite(quantiles([passed_s for _, passed_s, _ in rows], 0.5, 0.9)),
            },
        )
