"""Upgrades of a real site in real time: one release after the other, under load, with an adapter in use."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp

from bench.upgrades.releases import Release
from bench.upgrades.report import Upgrade
from bench.upgrades.sites import SITES, STEPS, Site
from flettner.simulator.tally import RequestRecord, TrafficSummary
from flettner.simulator.traffic import Load, TrafficGenerator
from tests.support.rig import SHAPE, Document, until

RATE, ADAPTER_RATE = 15.0, 1.0  # requests per second
ADAPTER = "sql"
MOST_FAILURES = 5  # kinds that are shown


async def upgrade_in_turn(engine: str, releases: Sequence[Release], rounds: int) -> AsyncIterator[Upgrade]:
    """Upgrade a site to each release in turn, a new one in each round: a release that was promoted, and is
    quicker, would be what the next round's are compared with.
    """
    for seed in range(rounds):
        home = Path(mkdtemp(prefix="u-"))
        async with AsyncExitStack() as stack:
            site = await stack.enter_async_context(SITES[engine](home, releases))
            await site.rig.load_adapter(site.address, ADAPTER, site.folder / ADAPTER)
            clients = await stack.enter_async_context(site.rig.clients(rate=RATE))
            adapters = TrafficGenerator(
                site.rig.url, ADAPTER, Load(rate=ADAPTER_RATE), shape=SHAPE, seed=2, timeout_s=40.0
            )
            await adapters.start()
            stack.push_async_callback(adapters.stop)
            for release in releases:
                yield await upgrade(site, release, seed, engine, (clients, adapters))


async def upgrade(
    site: Site, release: Release, seed: int, engine: str, traffic: Sequence[TrafficGenerator]
) -> Upgrade:
    """Propose it, approve it, wait for its end, and count what clients lost of what they sent meanwhile."""
    rig, clock = site.rig, asyncio.get_running_loop().time
    begun_s = clock()
    made = await rig.propose(**site.to(release))
    assert made["status"] == "open", made
    status, answer = await rig.approve(made)
    assert status == 200, answer  # noqa: PLR2004 - HTTP
    rollout = await rig.ended(str(made["id"]))
    exposed = rollout["exposed"]
    waits = [sent_between(each.tally, begun_s, clock(), each.tally.sent) for each in traffic]
    requests = [record for records in await asyncio.gather(*waits) for record in records]
    failures = Counter(f"{each.outcome}: {each.why}" for each in requests if each.outcome != "ok")
    failed = failures.total()
    return Upgrade(
        release=release.name,
        engine=engine,
        seed=seed,
        rate=RATE + ADAPTER_RATE,
        outcome=rollout["outcome"],
        why=rollout["why"],
        right=release.is_right(rollout["outcome"], rollout["why"]),
        weight=STEPS[min(rollout["step"], len(STEPS) - 1)][0],
        exposed=exposed["asked"],
        bad=rollout["bad_exposed"],
        lost=max(0, failed - rollout["bad_exposed"]) if release.answers_badly else failed,
        sent=len(requests),
        minutes=round(_minutes(rollout), 2),
        failures=dict(failures.most_common(MOST_FAILURES)),
    )


async def sent_between(
    tally: TrafficSummary, begun_s: float, ended_s: float, sent: int
) -> Sequence[RequestRecord]:
    """The requests sent meanwhile, once all have ended: a green that hangs keeps them for a minute.

    `sent`: how many were sent until `ended_s`.
    """

    async def count_ended() -> int:
        return sum(record.at < ended_s for record in tally.records)

    await until(count_ended, lambda ended: ended >= sent, "the end of the requests")
    return [record for record in tally.records if begun_s <= record.at < ended_s]


def _minutes(rollout: Document) -> float:
    began, ended = (datetime.fromisoformat(rollout[key]) for key in ("started_at", "ended_at"))
    return (ended - began).total_seconds() / 60
