"""Run one site: successive rollouts with faults, then the accounting."""

import asyncio
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from bench.kills.books import Fault, missing, rows
from bench.kills.faults import KILLS, KINDS
from bench.kills.site import EVERYTHING, Site, mounted, unmounted
from flettner.simulator.text import draws
from tests.support.config_builder import SiteConfig
from tests.support.prometheus_server import Page, real_prometheus
from tests.support.rig import Rig, flettner

STEPS = ((20, 3, 1.0), (50, 5, 1.0))
ROLLOUT_S = 9.0  # approximate duration of a rollout
AT_APPROVAL = 0.15  # share of faults during the approval
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Plan of one site. `others`: number of faults per kind except kills. `small`: its disk can be filled.

    `rate`: requests per second. `pause_s`: duration of SIGSTOP.
    """

    seed: int
    kills: int
    others: dict[str, int]
    small: bool
    rate: float
    for_s: float = 7200.0  # no rollout starts later
    pause_s: float = 60.0

    def deck(self, random: Random) -> list[str]:
        """Return the faults in their order; most kills are single."""
        cards = [kind for kind, times in self.others.items() for _ in range(times)]
        left = self.kills
        while left > 0:
            kind = random.choices(("kill", "double", "torn"), (6, 1, 1))[0]
            kind = kind if KILLS[kind] <= left else "kill"
            left -= KILLS[kind]
            cards.append(kind)
        random.shuffle(cards)
        return cards


def hands(deck: Sequence[str], random: Random) -> Iterator[list[str]]:
    """Yield the faults of each rollout: some kills, or one other fault."""
    waiting = list(deck)
    while waiting:
        hand = [waiting.pop(0)]
        most = random.choice((1, 1, 2, 3)) if hand[0] in KILLS else 1
        while len(hand) < most and waiting and waiting[0] in KILLS:
            hand.append(waiting.pop(0))
        yield hand


def run(plan: Plan) -> dict[str, Any]:
    """Run the plan in a separate process and return its accounting."""
    return asyncio.run(play(plan))


async def play(plan: Plan) -> dict[str, Any]:
    """Return the result as JSON; `wrong` and `lost` must be empty."""
    random = draws(plan.seed, "kills")
    home = Path(tempfile.mkdtemp(prefix="k-"))
    with ExitStack() as after:
        after.callback(shutil.rmtree, home, ignore_errors=True)
        prometheus = after.enter_context(real_prometheus(home, Page(samples={"gpu": "0.5"})))
        # killed early, blue leaves too short a record for the hold-back to pass: it may end without
        site_config = SiteConfig(steps=STEPS, hold_at_most_s=20.0, prometheus=prometheus.url)
        rig = Rig(home=home, site_config=site_config, patience_s=PATIENCE_S)
        rig.state_dir.mkdir(mode=0o700)
        small = plan.small and mounted(rig.state_dir)
        if small:
            after.callback(unmounted, rig.state_dir)
        rig.prepare()
        try:
            await rig.start()
            await rig.serving()
            async with rig.clients(plan.rate) as traffic:
                site = Site(
                    rig=rig,
                    random=random,
                    prometheus=prometheus,
                    traffic=traffic,
                    small=small,
                    pause_s=plan.pause_s,
                )
                following = asyncio.create_task(site.follow())
                await _rollouts(site, plan)
                following.cancel()
            return await _reckoned(site, plan)
        finally:
            await rig.tear_down()


async def _rollouts(site: Site, plan: Plan) -> None:
    deck = [kind for kind in plan.deck(site.random) if kind != "full" or site.small]
    ends_s = site.now_s() + plan.for_s
    for hand in hands(deck, site.random):
        if site.now_s() > ends_s:
            return
        try:
            await _rollout(site, hand, plan.seed)
        except (AssertionError, OSError, LookupError, StopIteration) as error:
            log = site.rig.log().splitlines()[-8:]
            site.books.wrong.append(f"{'+'.join(hand)}: {str(error)[:600] or error!r} | log: {log}")
            print(f"site {plan.seed}: WRONG {site.books.wrong[-1]}", flush=True)
            if site.rig.daemon is None or site.rig.daemon.returncode is not None:
                await site.rig.start()
            with suppress(AssertionError):
                await site.rests()


async def _rollout(site: Site, hand: list[str], seed: int) -> None:
    """Run one approved change with the given faults at random moments."""
    setting = (await site.rests())["servers"][0].get("setting", {})
    wanted = 8 if setting.get("max_num_seqs") == 16 else 16  # noqa: PLR2004 - twice as many
    made = await site.rig.propose(max_num_seqs=wanted)
    at_approval = site.random.random() < AT_APPROVAL and hand[0] in KILLS
    approving = asyncio.create_task(_approve(site, made))
    if not at_approval:
        await approving
    for place, kind in enumerate(hand):
        longest_s = 0.1 if at_approval and not place else ROLLOUT_S / len(hand)
        if kind not in {"pause", "green"}:
            await asyncio.sleep(site.random.uniform(0.0, longest_s))
        since = len(site.books.faults)
        await KINDS[kind](site)
        for fault in site.books.faults[since:]:
            print(_line(seed, site, fault), flush=True)
    await approving
    await site.rests()
    ended = await site.rig.rollout()
    outcome = ended.get("outcome") if ended.get("suggestion") == made["id"] else "not begun"
    site.books.outcomes[str(outcome)] += 1


async def _approve(site: Site, made: dict[str, Any]) -> None:
    status, _ = await site.rig.approve(made)
    if status == 200:  # noqa: PLR2004 - HTTP
        site.books.approved.append(str(made["id"]))
    elif not status:
        site.books.unanswered += 1
    else:
        site.books.refused[status] += 1


def _line(seed: int, site: Site, fault: Fault) -> str:
    back = f"ready {fault.back_s:.1f} s after its start" if fault.back_s is not None else ""
    lost = {
        kind: len(records) for kind, records in site.books.lost(site.traffic.tally.records).items() if records
    }
    notes = ", ".join(filter(None, (back, fault.note)))
    sent = site.traffic.tally.sent
    return f"site {seed}: {fault.kind:<18} {fault.phase:<16} {notes}; sent {sent}, lost {lost or 0}"


async def _reckoned(site: Site, plan: Plan) -> dict[str, Any]:
    """Stop the daemon as an operator does, and account."""
    if site.small:
        (site.rig.state_dir / EVERYTHING).unlink(missing_ok=True)
    await site.rig.kill(signal.SIGTERM)
    status, output = await flettner("audit", "verify", "--state-dir", str(site.rig.state_dir))
    entries = rows(site.rig.journal)
    lost = site.books.lost(site.traffic.tally.records)
    back = sorted(fault.back_s for fault in site.books.faults if fault.back_s is not None)
    return {
        "seed": plan.seed,
        "small_disk": site.small,
        "faults": dict(Counter(fault.kind for fault in site.books.faults)),
        "rollouts": dict(site.books.outcomes),
        "requests": site.traffic.tally.counts(),
        "lost": {kind: len(records) for kind, records in lost.items()},
        "lost_for_nothing": [asdict(record) for record in lost["other"]],
        "orphans": site.books.orphans,
        "audit": {
            "rows": len(entries),
            "verify": {"exit": status, "said": output.strip()},
            "missing": missing(site.books, entries),
            "shown": len(site.books.seen),
            "cut_by_a_fault": sorted(site.books.cut),
            "approvals": len(site.books.approved),
            "approvals_unanswered": site.books.unanswered,
            "approvals_refused": dict(site.books.refused),
        },
        "back_s": [round(seconds, 2) for seconds in back],
        "back_cpu_s": [round(fault.cpu_s, 2) for fault in site.books.faults if fault.cpu_s is not None],
        "green_ended_s": [round(seconds, 2) for seconds in site.books.green_ended_s],
        "wrong": site.books.wrong,
        "met": [asdict(fault) for fault in site.books.faults],
    }
