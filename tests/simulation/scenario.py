"""The scenario of a seed: the set-up of the target and its faults, in a printable form."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal, Self

from flettner.agent.domain.model import Mode, Strategy

REPLIES = (
    "crash before",
    "crash after",
    "refused",
    "failed but done",
    "reply lost",
    "late",
    "twice",
    "stuck",
)
POINTS: dict[str, tuple[str, ...]] = {
    "preflight": (*REPLIES, "wrong"),
    "launch": (*REPLIES, "wrong"),
    "warm_up": (*REPLIES, "wrong"),
    "examine": (*REPLIES, "wrong"),
    "route": (*REPLIES, "wrong"),
    "keep_alive": (*REPLIES, "wrong"),
    "drain": (*REPLIES, "wrong"),
    "stop": (*REPLIES, "wrong"),
    "retire": (*REPLIES, "wrong"),
    "set_knobs": (*REPLIES, "wrong"),
    "keep_knobs": (*REPLIES, "wrong"),
    "keep_adapters": (*REPLIES, "wrong"),
}
"""The faults of each kind of effect. tests/simulation/test_points.py asserts that each kind has some."""

MOST = {
    "keep_alive": 30,
    "keep_knobs": 30,
    "set_knobs": 4,
    "route": 4,
    "drain": 4,
    "keep_adapters": 3,
    "examine": 2,
}
"""The last call of a kind that a drawn fault may affect; the first where none is named."""

JOURNAL = ("crash before", "crash after", "torn", "disk full", "fsync fails", "bit flipped")
NEW = ("new server exits", "new server hangs", "new server wedges", "new server errs")
OLD = ("old server hangs", "old server wedges", "old server errs", "old server freezes for a while")
ON_FILES = frozenset(JOURNAL[2:])  # faults of a journal on a disk
PHASES = (
    "launching",
    "launching",
    "warming",
    "canary",
    "canary",
    "trial",
    "promoting",
    "rolling_back",
    "draining",
)
WORDS = (
    "approves twice",
    "approves what was not shown",
    "denies after approval",
    "aborts",
    "pauses",
    "asks for a change",
    "without the role",
)
TIMED = (
    "daemon killed",
    "daemon killed twice",
    "daemon paused",
    "daemon paused and replaced",
    "daemon dead for long",
    "daemon restarted in advise mode",
    "clock forward",
    "clock back",
    "proxy restarts",
    "old server exits",
    "old server hangs",
    "old server wedges",
    "old server errs",
    "old server freezes for a while",
    "new server exits",
    "new server hangs",
    "new server wedges",
    "new server errs",
    "out of memory",
    "metrics stale",
    "metrics NaN",
    "metrics reset",
    "metrics missing",
    "records missing",
    "server removed by hand",
    "flags changed by hand",
    "weights changed by hand",
    "stray server by hand",
    "token removed",
    "tokens file broken",
    "restarted with another configuration",
)
OPERATIONS = ("config reloaded", "config broken", "config needs a restart", "maintenance")
"""What people do to the daemon besides deciding."""
OF_LOAD = ("lengths change", "load returns")
ASLEEP = ("sleeping server exits", "sleeping server does not wake")
AGAIN = ("recovery: crash",)
KINDS: tuple[str, ...] = (
    *(f"{kind}: {how}" for kind, hows in POINTS.items() for how in hows),
    *(f"journal: {how}" for how in JOURNAL),
    *(f"operator {word}" for word in WORDS),
    *TIMED,
    *AGAIN,
    *ASLEEP,
    *OPERATIONS,
    *OF_LOAD,
)
GREENS = ("good", "good", "good", "failing", "fails to start", "exits", "hangs", "wedges", "wrong answers")
Green = Literal["good", "failing", "fails to start", "exits", "hangs", "wedges", "wrong answers"]
FLEETS: tuple[tuple[int, Strategy], ...] = (
    (1, "surge"),
    (1, "surge"),
    (2, "surge"),
    (1, "swap"),
    (2, "replace"),
    (3, "replace"),
    (1, "hot"),
    (2, "hot"),
)
SWAPS_AND_REPLACEMENTS = FLEETS[3:6]
HOT = FLEETS[6:]
SELDOM = ("stop", "examine", "warm_up", "retire", "drain", "launch")
SLEEPS = 0.5  # of the swaps
LATE = 0.3  # of the histories have a proxy with late threads
SAVES = 0.35  # of the fleets that could be replaced
SWITCHES = {"hot": 0.3, "surge": 0.12}  # the share of them, by strategy
OPEN = 0.6  # of the histories
FIRST_S, LAST_S = 2.0, 45.0
QUIET_S, LOAD_QUIET_S = 50.0, 75.0  # no fault begins later; the same where the load changes
AMID = (
    "daemon killed",
    "daemon dead for long",
    "daemon paused and replaced",
    "operator pauses",
    "operator aborts",
    "operator asks for a change",
    "old server exits",
    "old server hangs",
    "old server errs",
    "clock forward",
    "clock back",
    "records missing",
    "metrics stale",
    "maintenance",
    "config reloaded",
    "proxy restarts",
)
"""What happens in the middle of a switch or a saving, besides the faults of effects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One fault or operator action: at a time, or at the nth call of kind `on` by processes after `start`."""

    what: str
    at_s: float = 0.0
    on: str = ""
    nth: int = 1
    start: int = 0
    lasts_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    seed: int
    servers: int = 1
    strategy: Strategy = "surge"
    green: str = "good"
    mode: Mode = "approve"
    ours: bool = True
    exam: bool = False
    on_disk: bool = False  # the journal is written to files
    impatient: bool = False  # an operator aborts an unfinished rollout at the end
    sleeps: bool = False  # a server that frees its slot sleeps, if it has no open requests
    late_threads: bool = False  # some of the proxy work by the split before for a while
    switches: bool = False  # between two settings, as the answers get longer and shorter
    several: bool = False  # a second policy proposes, and operators think before they approve
    closed_s: tuple[float, float] | None = None  # from and to which second no rollout may start
    refuses: bool = False  # an approval meanwhile, instead of keeping it
    rolls_back: bool = False  # what runs when the window closes
    acts: tuple[Act, ...] = field(default_factory=tuple)

    @property
    def names(self) -> list[str]:
        """Names of the initial servers."""
        return [f"vllm{number}" for number in range(self.servers)]

    @property
    def follows_load(self) -> bool:
        return self.switches or self.strategy == "save"

    def without(self, at: int) -> Self:
        return replace(self, acts=(*self.acts[:at], *self.acts[at + 1 :]))


def drawn(what: str, seed: int) -> Random:
    """The random generator of one part of a history."""
    return Random(f"{what} {seed}")  # noqa: S311 - not for cryptography


def scenario_of(seed: int) -> Scenario:
    """The history of this seed."""
    random = drawn("script", seed)
    acts = [_act(random, _kind(random)) for _ in range(random.choice((2, 3, 4, 5, 6, 7, 9)))]
    if "any" in {act.on for act in acts}:
        acts.append(Act(what="daemon killed", at_s=round(random.uniform(FIRST_S, LAST_S), 1)))
    on = {act.on for act in acts}
    fleets = FLEETS
    if {"stop", "phase draining"} & on:
        fleets = SWAPS_AND_REPLACEMENTS
    if {"set_knobs", "keep_knobs"} & on:
        fleets = HOT
    servers, strategy = random.choice(fleets)
    if servers > 1 and strategy in {"surge", "replace"} and drawn("save", seed).random() < SAVES:
        strategy = "save"
    sleeps = strategy == "swap" and drawn("sleep", seed).random() < SLEEPS
    switches = drawn("switch", seed).random() < SWITCHES.get(strategy, 0.0)
    acts += _acts_asleep(seed) if sleeps else []
    acts += _operations(seed)
    acts += _acts_of_load(seed, strategy) if switches or strategy == "save" else []
    return Scenario(
        seed=seed,
        servers=servers,
        strategy=strategy,
        green=random.choice(GREENS),
        mode=random.choice(("approve", "approve", "auto")),
        ours=random.random() < 0.7,
        exam="examine" in on or random.random() < 0.1,
        on_disk=any(act.what in ON_FILES for act in acts),
        impatient=random.random() < 0.5,
        several=random.random() < 0.5,
        sleeps=sleeps,
        late_threads=drawn("threads", seed).random() < LATE,
        switches=switches,
        acts=tuple(acts),
        **_window(seed),
    )


def _operations(seed: int) -> list[Act]:
    """From a generator of its own, as what follows: the other parts of a history stay."""
    random = drawn("operations", seed)
    kinds = random.choices(OPERATIONS, k=random.choice((0, 0, 1, 1, 2)))
    return [
        Act(what=what, at_s=round(random.uniform(FIRST_S, LAST_S), 1), lasts_s=random.choice((3.0, 8.0)))
        for what in kinds
    ]


def _window(seed: int) -> dict[str, Any]:
    random = drawn("window", seed)
    if random.random() < OPEN:
        return {}
    begin_s = random.choice((0.0, round(random.uniform(FIRST_S, LAST_S), 1)))
    end_s = round(begin_s + random.choice((5.0, 15.0, 60.0)), 1)
    return {
        "closed_s": (begin_s, end_s),
        "refuses": random.random() < OPEN,
        "rolls_back": random.random() < OPEN,
    }


def _acts_asleep(seed: int) -> list[Act]:
    """Faults of a sleeping server, from a generator of its own: the other parts of a history stay."""
    random = drawn("asleep", seed)
    if random.random() < SLEEPS:
        return []
    on = f"phase {random.choice(('launching', 'warming', 'canary', 'canary', 'promoting', 'rolling_back'))}"
    return [Act(what=random.choice(ASLEEP), on=on)]


def _acts_of_load(seed: int, strategy: Strategy) -> list[Act]:
    """The load changes, and something happens in the middle of what follows it."""
    random = drawn("load", seed)
    saves, acts = strategy == "save", list[Act]()
    at_s = random.uniform(36.0, 60.0) if saves else random.uniform(6.0, 13.0)
    while at_s < LOAD_QUIET_S - 10.0:
        acts.append(Act(what=OF_LOAD[saves], at_s=round(at_s, 1), lasts_s=random.choice((10.0, 25.0))))
        at_s += random.uniform(15.0, 32.0)
    points = ("launch", "stop", "drain", "route") if saves else ("set_knobs", "keep_knobs", "launch", "route")
    for _ in range(random.choice((0, 1, 1, 2))):
        if random.random() < OPEN:
            at_s = round(random.uniform(20.0, LOAD_QUIET_S), 1)
            acts.append(Act(what=random.choice(AMID), at_s=at_s, lasts_s=random.choice((4.0, 12.0))))
        else:
            on = random.choice(points)
            acts.append(Act(what=random.choice(POINTS[on]), on=on, nth=random.randint(1, 6)))
    return acts


def _kind(random: Random) -> str:
    """Draw a kind of fault; kinds that rarely fire have a higher weight."""
    if random.random() < 0.025:
        return f"journal: {random.choice(JOURNAL)}"
    if random.random() < 0.3:
        kind = random.choice(SELDOM)
        return f"{kind}: {random.choice(POINTS[kind])}"
    if random.random() < 0.05:
        return random.choice((*AGAIN, "operator approves twice", "flags changed by hand", *NEW))
    return random.choice(
        [
            kind
            for kind in KINDS
            if not kind.startswith("journal") and kind not in {*ASLEEP, *OPERATIONS, *OF_LOAD}
        ]
    )


def _act(random: Random, what: str) -> Act:
    head, _, how = what.partition(": ")
    lasts_s = round(random.choice((2.0, 6.0, 15.0)) * random.uniform(0.5, 1.5), 1)
    start = int(random.random() < 0.05)
    if head == "recovery":
        return Act(what=what, on="any", nth=random.randint(1, 12), start=1)
    if head == "journal":
        return Act(what=how, on="journal", nth=random.randint(1, 22), start=start, lasts_s=lasts_s)
    if head in POINTS:
        most = MOST.get(head, 1)
        return Act(what=how, on=head, nth=random.randint(1, most), start=start, lasts_s=lasts_s)
    if head in OLD and random.random() < 0.5:
        return Act(what=head, on=f"phase {random.choice(PHASES)}", lasts_s=3 * lasts_s)
    if head.startswith("new server ") and random.random() < 0.8:
        on = random.choice(("phase warming", "phase canary", "phase canary"))
        return Act(what=head, on=on, nth=random.randint(1, 2), lasts_s=lasts_s)
    if head == "daemon paused and replaced" and random.random() < 0.4:
        on = random.choice(("phase launching", "phase launching", "phase warming", "phase promoting"))
        return Act(what=head, on=on, lasts_s=lasts_s)
    if head.startswith("operator ") and random.random() < 0.7:
        return Act(what=head, on=f"phase {random.choice(PHASES)}", lasts_s=lasts_s)
    return Act(what=head, at_s=round(random.uniform(FIRST_S, LAST_S), 1), lasts_s=lasts_s)


def name_of(act: Act) -> str:
    """The name of the act in KINDS."""
    return f"{act.on}: {act.what}" if act.on in POINTS or act.on == "journal" else act.what
