"""One upgrade in virtual time: the rollout of bench.rollouts, to a green of the release."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from bench.rollouts.cases import CALM, PROFILES, Green
from bench.rollouts.story import DEFAULT, Case, play
from bench.upgrades.releases import Release
from bench.upgrades.report import Upgrade

RATES = (2.0, 8.0)
HISTORY_S = 1800  # seconds of observation of blue before
IMAGE = "vllm/vllm-openai:v0.33.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    release: Release
    rate: float
    seed: int
    hold_s: float  # of the plan; an upgrade holds twice as long


def draw_runs(releases: Sequence[Release], seeds: int, hold_s: float) -> Iterator[Run]:
    for seed, rate, release in product(range(seeds), RATES, releases):
        if release.virtual:
            yield Run(release=release, rate=rate, seed=seed, hold_s=hold_s)


def run(task: Run) -> Upgrade:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    *steps, hold = DEFAULT.steps
    case = Case(
        seed=task.seed,
        rate=task.rate,
        profile=PROFILES[task.seed % len(PROFILES)] if task.release.right == "promoted" else CALM,
        green=Green(name=task.release.name, to={"image": IMAGE}, faults=task.release.faults),
        history_s=HISTORY_S,
        plan=replace(DEFAULT, steps=(*steps, replace(hold, at_least_s=task.hold_s))),
    )
    with TemporaryDirectory(prefix="upgrades-") as home:
        outcome = play(case, Path(home))
    ends_s = outcome.story_s - outcome.approved_s
    return Upgrade(
        release=task.release.name,
        engine="virtual",
        seed=task.seed,
        rate=task.rate,
        outcome=outcome.result,
        why=outcome.why,
        right=task.release.is_right(outcome.result, outcome.why),
        weight=outcome.weight,
        exposed=outcome.exposed,
        bad=outcome.bad_exposed,
        lost=0,
        sent=outcome.exposed,
        minutes=round(ends_s / 60, 1),
    )
