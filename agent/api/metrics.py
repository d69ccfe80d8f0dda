"""The daemon itself, and what it knows of each target, as Prometheus text (format 0.0.4)."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version

from agent.api.desk import Desk
from agent.errors import JournalError
from agent.state import Phase

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
PIN_EVERY = 100  # entries
ENDINGS = ("promoted", "rolled_back")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name without `trimtab_`, its samples by label values."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    samples: Mapping[tuple[str, ...], float] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        name = f"trimtab_{self.name}"
        yield f"# HELP {name} {self.help.replace(chr(92), chr(92) * 2).replace(chr(10), chr(92) + 'n')}"
        yield f"# TYPE {name} {'counter' if self.name.endswith('_total') else 'gauge'}"
        for values, number in self.samples.items():
            pairs = ",".join(
                f'{label}="{_escaped(value)}"' for label, value in zip(self.labels, values, strict=True)
            )
            yield f"{name}{{{pairs}}} {_number(number)}" if pairs else f"{name} {_number(number)}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if float(value).is_integer() else repr(float(value))


def exposition(desk: Desk) -> str:
    return "".join(f"{line}\n" for family in _families(desk) for line in family.lines())


def _families(desk: Desk) -> Iterable[Family]:
    yield Family(
        "build_info",
        "Always 1; the label says which version runs.",
        ("version",),
        {(version("trimtab"),): 1},
    )
    yield Family(
        "ready", "1 while the daemon holds its lock and its loop makes progress.", (), {(): desk.ready()}
    )
    yield from _targets(desk)
    yield from _measured(desk)
    yield Family(
        "audit_pin_info",
        "Always 1; the labels are the latest audit entry whose number is a multiple of 100, and its hash.",
        ("seq", "hash"),
        _pin(desk),
    )
    yield Family(
        "rollouts_total",
        "Rollouts that ended, by outcome, as far back as the journal remembers.",
        ("target", "outcome"),
        _ended(desk),
    )
    for name, value in sorted(desk.counters().items()):
        yield Family(name, "Reported by the daemon's loop.", (), {(): value})


def _targets(desk: Desk) -> Iterable[Family]:
    states = sorted(desk.states().items())
    yield Family(
        "target_phase",
        "1 for the phase that the target is in, 0 for the others.",
        ("target", "phase"),
        {(name, phase.value): state.phase is phase for name, state in states for phase in Phase},
    )
    yield Family(
        "target_paused",
        "1 while a person has paused the target.",
        ("target",),
        {(name,): state.paused for name, state in states},
    )
    yield Family(
        "target_suggestion_open",
        "1 while a suggestion waits for a person.",
        ("target",),
        {
            (name,): state.suggestion is not None and state.suggestion.status == "open"
            for name, state in states
        },
    )
    yield Family(
        "server_weight_ratio",
        "Share of the target's traffic that the proxy was asked to give the server, 0 to 1.",
        ("target", "server"),
        {
            (name, server): weight / 100
            for name, state in states
            if state.route is not None
            for server, weight in state.route.weights.items()
        },
    )


def _measured(desk: Desk) -> Iterable[Family]:
    readings = {name: reading for name, reading in sorted(desk.readings().items()) if reading is not None}
    yield Family(
        "target_goodput_rps",
        "Requests per second that met every latency objective, over the last window of blue.",
        ("target",),
        {
            (name,): reading.goodput_rps
            for name, reading in readings.items()
            if reading.goodput_rps is not None
        },
    )
    yield Family(
        "target_ttft_p95_seconds",
        "95th percentile of the time to the first token, over the last window of blue.",
        ("target",),
        {(name,): reading.ttft.p95 for name, reading in readings.items() if reading.ttft is not None},
    )
    slos, states = desk.slos(), desk.states()
    yield Family(
        "error_budget_burn",
        "How many times faster than it may the error budget of the SLO's worst objective is used up.",
        ("target", "window"),
        {
            (name, burn.window): burn.rate
            for name, slo in sorted(slos.items())
            if name in states
            for burn in states[name].budget.burns(slo, desk.now())
        },
    )
    yield Family(
        "source_up",
        "1 while the source answers, 0 while it is lost.",
        ("target", "source"),
        {
            (name, source): state.available
            for name, sources in sorted(desk.sources().items())
            for source, state in sorted(sources.items())
        },
    )


def _pin(desk: Desk) -> Mapping[tuple[str, ...], float]:
    """What `audit verify --pin` takes. Not the head itself: each entry would make another series."""
    seq = int(desk.counters().get("audit_head_seq", 0)) // PIN_EVERY * PIN_EVERY
    if not seq:
        return {}
    try:
        records = desk.records(seq - 1, 1)
    except JournalError:  # it shows elsewhere; the other numbers are needed all the more
        return {}
    return {(str(seq), str(record["hash"])): 1 for record in records if "hash" in record}


def _ended(desk: Desk) -> Mapping[tuple[str, ...], float]:
    counts: dict[tuple[str, ...], float] = {
        (name, ending): 0 for name in sorted(desk.states()) for ending in ENDINGS
    }
    for target, rollout in desk.rollouts():
        if rollout.outcome in ENDINGS:
            counts[target, rollout.outcome] = counts.get((target, rollout.outcome), 0) + 1
    return counts
