"""A merged change that another tool applies is compared with the hour before; a worse one is taken back."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from flettner.agent.domain.events import AppliedChangeCompared
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import PreflightResult
from flettner.agent.gitops.applied_changes import compare_minutes
from flettner.agent.gitops.pull_requests import PullRequests
from flettner.agent.observe.minute_rows import MinuteRow
from tests.integration.git.test_pull_requests import COMPOSE, OPEN, Site, build_site
from tests.support.machine_stories import BLUE, NOON

HELD = replace(OPEN, preflight=PreflightResult(owner="Flux"))
APPLIED = Fleet(servers=(replace(BLUE, setting={**BLUE.setting, "max_num_seqs": 16}),))
HOUR = range(-60, 0)


class Cluster:
    """A site whose clock goes by minutes from the merge, and whose Flux applies what is merged."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.minute = -60
        self.minutes: list[MinuteRow] = []
        site.requests.minutes = lambda: self.minutes
        site.requests.now = lambda: NOON + timedelta(minutes=self.minute)

    def serve(self, bad: Sequence[float], rate_rps: float = 2.0) -> None:
        """Let a minute pass for each share of bad requests."""
        for share in bad:
            at = int((NOON + timedelta(minutes=self.minute)).timestamp())
            row = MinuteRow(at=at, requests_rps=rate_rps, attainment=1 - share)
            self.minutes.append(row)
            self.minute += 1

    async def merge(self) -> None:
        """Merge, and apply it two minutes later."""
        self.site.set(HELD)
        await self.site.update()
        self.site.merge("alice")
        await self.site.update()
        self.serve([0.02, 0.02])
        self.site.set(fleet=APPLIED)
        await self.site.update()

    async def follow(self, bad: Sequence[float], rate_rps: float = 2.0) -> None:
        for share in bad:
            self.serve([share], rate_rps)
            await self.site.update()

    @property
    def compared(self) -> list[str]:
        """The results that the audit gets."""
        events = self.site.target.events
        return [event.why for event in events if isinstance(event, AppliedChangeCompared)]

    @property
    def settled(self) -> bool:
        return self.site.requests.tracked["chat-s1"].settled


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with build_site(tmp_path) as site:
        yield Cluster(site)


async def test_a_change_that_flux_applied_and_that_is_worse_is_taken_back(cluster: Cluster) -> None:
    cluster.serve([0.02 if minute % 3 else 0.04 for minute in HOUR])
    await cluster.merge()

    await cluster.follow([0.3] * 20)

    merged, reversal = cluster.site.forge.pulls
    assert "another pull request takes it back" in merged.body
    assert (reversal.branch, reversal.title) == (
        "flettner/revert-chat-s1",
        "chat: take back max_num_seqs 16 → 4",
    )
    assert "30.0% of the requests of the last" in reversal.body
    assert "2.7% in the hour before the merge, at most 4.0% in a minute of it" in reversal.body
    assert cluster.site.repository.read(reversal.branch) == COMPOSE
    assert (cluster.site.approvals, cluster.settled) == ([], True)
    (result,) = cluster.compared
    assert "the servers are worse with it, and another pull request takes it back: 30.0%" in result


async def test_a_change_that_is_not_worse_is_kept_after_an_hour(cluster: Cluster) -> None:
    cluster.serve([0.02] * 60)
    await cluster.merge()

    await cluster.follow([0.3] * 5)  # caches are cold
    await cluster.follow([0.025] * 59)
    before = cluster.settled
    await cluster.follow([0.025] * 2)

    assert (before, cluster.settled, len(cluster.site.forge.pulls)) == (False, True, 1)
    (result,) = cluster.compared
    assert "chat-s1 was applied after" in result
    assert "the servers are not worse with it: 2.5% of the requests of 60 minutes were bad" in result


async def test_minutes_of_more_load_than_before_do_not_count(cluster: Cluster) -> None:
    cluster.serve([0.02] * 60)
    await cluster.merge()

    await cluster.follow([0.5] * 90, rate_rps=3.0)

    assert (cluster.settled, len(cluster.site.forge.pulls)) == (False, 1)


async def test_some_bad_minutes_are_no_worse_change(cluster: Cluster) -> None:
    cluster.serve([0.02] * 60)
    await cluster.merge()

    await cluster.follow(([0.3] * 7 + [0.02] * 7) * 5)

    assert (cluster.settled, len(cluster.site.forge.pulls)) == (True, 1)


async def test_without_minutes_before_there_is_no_verdict(cluster: Cluster) -> None:
    await cluster.merge()

    await cluster.follow([0.9])

    assert (cluster.settled, len(cluster.site.forge.pulls)) == (True, 1)
    (result,) = cluster.compared
    assert "had requests, 10 are needed" in result


async def test_what_is_changed_again_is_not_judged(cluster: Cluster) -> None:
    cluster.serve([0.02] * 60)
    await cluster.merge()
    await cluster.follow([0.3] * 3)
    cluster.site.set(fleet=Fleet())  # no server is known for a moment
    await cluster.follow([0.3])
    known = cluster.settled
    cluster.site.set(fleet=Fleet(servers=(BLUE,)))

    await cluster.follow([0.3] * 20)

    assert (known, cluster.settled, len(cluster.site.forge.pulls)) == (False, True, 1)


async def test_what_is_applied_by_nobody_is_given_up_after_a_day(cluster: Cluster) -> None:
    cluster.serve([0.02] * 60)
    cluster.site.set(HELD)
    await cluster.site.update()
    cluster.site.merge("alice")
    await cluster.site.update()
    cluster.site.set()
    await cluster.site.update()
    before = cluster.settled
    cluster.minute = 24 * 60 + 1

    await cluster.site.update()

    assert (before, cluster.settled, len(cluster.site.forge.pulls)) == (False, True, 1)


async def test_a_restart_goes_on_with_the_comparison(cluster: Cluster) -> None:
    cluster.serve([0.02] * 60)
    await cluster.merge()
    await cluster.follow([0.3] * 12)
    old = cluster.site.requests
    cluster.site.requests = PullRequests(options=old.options, file=old.file, now=old.now, minutes=old.minutes)

    await cluster.follow([0.3] * 8)

    assert len(cluster.site.forge.pulls) == 2


async def test_a_reversal_that_the_forge_refuses_is_tried_again(cluster: Cluster) -> None:
    cluster.serve([0.02] * 60)
    await cluster.merge()
    cluster.serve([0.3] * 20)
    cluster.site.forge.status = 500
    await cluster.site.update()
    refused = (cluster.settled, len(cluster.site.forge.pulls))
    cluster.site.forge.status = 0

    await cluster.site.update()

    assert (refused, cluster.settled, len(cluster.site.forge.pulls)) == ((False, 1), True, 2)


@pytest.mark.parametrize(("bad", "verdict"), [(0.05, "kept"), (0.2, "worse")], ids=str)
def test_chance_decides_nothing(bad: float, verdict: str) -> None:
    random = Random(1)  # noqa: S311
    verdicts = {_verdict(random, 0.05, bad) for _ in range(25)}

    assert verdicts == {verdict}


def _verdict(random: Random, before: float, after: float) -> str:
    """Of minutes with 60 requests each, of which each is bad with this chance."""
    shares = [before] * 60 + [after] * 80
    rows = [
        MinuteRow(
            at=60 * minute,
            requests_rps=1.0,
            attainment=1 - sum(random.random() < share for _ in range(60)) / 60,
        )
        for minute, share in enumerate(shares)
    ]
    looks = (compare_minutes(rows[:end], 3600, 3600).verdict for end in range(61, len(rows) + 1))
    return next((verdict for verdict in looks if verdict != "open"), "open")
