"""What the rules suggest in a world: all shipped policies on the readings of a simulated server.

The server serves the recorded ten minutes with the setting in force and is scraped each second, as the sensor
`vllm_metrics` does; no model and no other signal takes part.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import log2

from bench.prediction.truth import HICCUP_S, JITTER, case_of, requests_of, unlike
from bench.tuning.world import LEARN_S, World
from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.reading import Reading
from flettner.agent.observe.aggregator import Aggregator
from flettner.performance_model.engine_limits import EngineLimits
from flettner.simulator.flags import Flags, parse
from flettner.tools.advisor.run_policies import run_all
from flettner.tools.tuning.searches import Point, Tried, untried
from flettner.vllm_facts.values import Knob, Value
from tests.support.virtual_server import VirtualServer

SHARE = 0.95  # of the requests that shall meet each objective
FIRST_S, EVERY_S = 60.0, 30.0  # of the readings
HICCUPS_S = 15.0  # between two; the truth has one in 500 steps
SERVER = "w-r0"
UNIX = datetime(2026, 1, 1, tzinfo=UTC)
Change = Mapping[Knob, Value]


@dataclass(frozen=True, kw_only=True)
class RuleSearch:
    """The first change that two readings in a row ask for, as the nearest point of the grid on its way.

    `least_gain`: of a canary that is promoted; the next change is one of its setting.
    """

    world: World
    least_gain: float
    _suggested: dict[int, Sequence[Change]] = field(default_factory=dict)

    def propose(self, tried: Sequence[Tried]) -> Point | None:
        own = tried[0]
        for trial in tried[1:]:
            if (trial.goodput or 0.0) > (own.goodput or 0.0) + self.least_gain:
                own = trial
        at = self.world.points.index(own.point)
        if at not in self._suggested:
            self._suggested[at] = suggested(self.world, at)
        left = untried(self.world.points, tried)
        wanted = (nearest(own.point, change, self.world.points) for change in self._suggested[at])
        return next((point for point in wanted if point in left), None)


def suggested(world: World, at: int) -> Sequence[Change]:
    """Return changes of the knobs of the grid that two readings in a row ask for, in order of precedence."""
    limits, goals = world.limits[at], world.goals
    slo = Slo(ttft=_objective(goals.ttft_s), itl=_objective(goals.itl_s))
    case, before = case_of(world.gpu, limits), list[Change]()
    for reading in _readings(world, limits, slo):
        findings = run_all(reading, case.setting, slo, case).findings
        changes = [
            finding.to for finding in findings if finding.to and finding.to.keys() <= world.points[0].keys()
        ]
        agreed = [change for change in changes if change.keys() in [earlier.keys() for earlier in before]]
        if agreed:
            return agreed
        before = changes
    return ()


def _readings(world: World, limits: EngineLimits, slo: Slo) -> Iterator[Reading]:
    """Yield the readings of a server with the traffic that `World.learn` records."""
    server = VirtualServer(SERVER, _flags(world, limits), now_s=0.0, unix_s=UNIX.timestamp())
    coming = requests_of(world.traffic(2, LEARN_S))
    aggregator, sent = Aggregator(slo=slo), 0
    for second in range(1, int(coming[-1].arrived_at)):
        while sent < len(coming) and coming[sent].arrived_at <= second:
            server.ask(coming[sent])
            sent += 1
        server.advance(second)
        now = UNIX + timedelta(seconds=second)
        aggregator.add(server.scrape(now, second))
        if second >= FIRST_S and not second % EVERY_S and (reading := aggregator.reading(SERVER, now)):
            yield reading


def nearest(own: Point, change: Change, points: Sequence[Point]) -> Point:
    """Return the point whose changed knobs lie on the way of the change, nearest to its values in octaves."""

    def distance(point: Point) -> float:
        return sum(abs(_octaves(point[knob]) - _octaves(value)) for knob, value in change.items())

    def is_on_its_way(point: Point) -> bool:
        return all(
            (_octaves(point[knob]) - _octaves(own[knob])) * (_octaves(change[knob]) - _octaves(own[knob])) > 0
            if knob in change
            else point[knob] == own[knob]
            for knob in point
        )

    return min(filter(is_on_its_way, points), key=distance, default=own)


def _octaves(value: Value) -> float:
    return log2(float(value)) if isinstance(value, (int, float)) else 0.0


def _objective(seconds: float | None) -> Objective | None:
    return None if seconds is None else Objective(under_s=seconds, share=SHARE)


def _flags(world: World, limits: EngineLimits) -> Flags:
    flags = parse(
        [
            *("--model", "tiny", "--sim-hardware", world.gpu, "--sim-jitter", str(JITTER)),
            *("--sim-hiccups", f"{HICCUPS_S}:{HICCUP_S}", "--no-enable-prefix-caching"),
            *("--num-gpu-blocks-override", str(limits.kv_blocks), "--max-model-len", "8192"),
            *("--max-num-seqs", str(limits.max_num_seqs)),
            *("--max-num-batched-tokens", str(limits.max_num_batched_tokens)),
        ]
    )
    hardware = unlike(world.gpu, world.seed)
    return replace(flags, simulation=replace(flags.simulation, hardware=hardware))
