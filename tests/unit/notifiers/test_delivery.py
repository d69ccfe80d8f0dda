"""Delivery of notices to a failing receiver, over real HTTP."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog

from flettner.agent.audit.anchors import find_anchors
from flettner.agent.audit.chain import Head
from flettner.agent.audit.journal import Journal
from flettner.agent.audit.records import DAEMON, JournalEntry
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestions
from flettner.agent.notify.delivery import NoticeDelivery, RetryLimits
from flettner.agent.notify.rules import Notice, NoticeSeverity, OutgoingNotice
from flettner.notifiers.slack import Slack
from tests.unit.notifiers.receiver import receiving
from tests.unit.notify.test_rules import SERVING, SUGGESTION, ended

AT = datetime(2030, 1, 1, 12, tzinfo=UTC)
NOWHERE = "http://127.0.0.1:1/PLANTED"
QUICK = RetryLimits(timeout_s=0.3, first_s=0.01, longest_s=0.05)
OPEN = replace(SERVING, suggestions=Suggestions(open=(SUGGESTION,)))
DENIED = ended("denied")


@dataclass
class Site:
    """A journal, and deliveries that follow it."""

    home: Path
    at: datetime = AT
    state: State = field(default_factory=lambda: SERVING)
    writable: bool = True
    full: bool = False
    anchor: Head | None = None

    def __post_init__(self) -> None:
        self.journal = Journal.open(self.home / "audit.jsonl", now=lambda: self.at)

    def write(self, action: str, state: State) -> None:
        self.state = state
        self.journal.append(JournalEntry(at=self.at, actor=DAEMON, action=action, target="chat", state=state))

    def noted(self, notice: str) -> bool:
        """Return whether the notice is saved as sent."""
        file = self.home / "notify" / "ops.json"
        return file.exists() and notice in file.read_text()

    def delivery(
        self, url: str, min_severity: NoticeSeverity = "info", retry: RetryLimits = QUICK
    ) -> NoticeDelivery:
        return NoticeDelivery(
            name="ops",
            notifier=Slack(url=url),
            min_severity=min_severity,
            file=self.home / "notify" / "ops.json",
            console="https://flettner.example.org",
            now=lambda: self.at,
            follow=self.journal.subscribe,
            head=self.journal.head.seq,
            states=lambda: {"chat": self.state},
            writable=lambda: self.writable,
            full=lambda: self.full,
            anchor=lambda: self.anchor,
            retry=retry,
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.journal.close()


@asynccontextmanager
async def working(delivery: NoticeDelivery) -> AsyncIterator[NoticeDelivery]:
    task = asyncio.create_task(delivery.run())
    try:
        yield delivery
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.005)


async def test_a_notice_arrives_with_a_link_to_its_page(site: Site) -> None:
    async with receiving() as receiver, working(site.delivery(receiver.url)):
        site.write("suggestion.made", OPEN)
        await until(lambda: receiver.seen)

    (attachment,) = receiver.bodies[0]["attachments"]
    assert attachment["title_link"] == "https://flettner.example.org/#/suggestions/chat-s1"
    assert attachment["title"].startswith("chat: max_num_seqs 4 → 8 waits for approval")


@pytest.mark.parametrize("plan", [[500, 503], [429], [408], ["hang"]], ids=str)
async def test_retries_temporary_failures(site: Site, plan: list[int | str]) -> None:
    async with receiving(*plan) as receiver, working(site.delivery(receiver.url)) as delivery:
        site.write("suggestion.made", OPEN)
        await until(lambda: delivery.counts.sent)

    assert len(receiver.seen) == 1
    assert (delivery.counts.retries, delivery.counts.failed, delivery.counts.works) == (len(plan), 0, True)


async def test_waits_as_long_as_the_receiver_asks_for(site: Site) -> None:
    async with (
        receiving(429, Retry_After="200") as receiver,
        working(site.delivery(receiver.url, retry=replace(QUICK, keep_s=100.0))) as delivery,
    ):
        site.write("suggestion.made", OPEN)
        await until(lambda: delivery.counts.dropped)

    assert len(receiver.visited) == 1, "200 s are longer than a notice is kept here"


@pytest.mark.parametrize("status", [400, 401, 404, 410])
async def test_a_refusal_is_not_retried_and_the_next_notice_is_sent(site: Site, status: int) -> None:
    async with receiving(status) as receiver, working(site.delivery(receiver.url)) as delivery:
        site.write("suggestion.made", OPEN)
        site.write("suggestion.denied", DENIED)
        await until(lambda: delivery.counts.sent)

    assert (delivery.counts.failed, delivery.counts.retries) == (1, 0)
    assert "was denied" in receiver.bodies[0]["attachments"][0]["title"]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(site: Site, status: int) -> None:
    async with (
        receiving() as elsewhere,
        receiving(status, Location=elsewhere.url) as receiver,
        working(site.delivery(receiver.url)) as delivery,
    ):
        site.write("suggestion.made", OPEN)
        await until(lambda: delivery.counts.failed)

    assert (elsewhere.visited, len(receiver.visited)) == ([], 1)


async def test_an_endless_answer_is_not_read(site: Site) -> None:
    async with receiving("endless") as receiver, working(site.delivery(receiver.url)) as delivery:
        site.write("suggestion.made", OPEN)
        await until(lambda: delivery.counts.sent)

    assert (delivery.counts.failed, delivery.counts.retries) == (0, 0)


async def test_an_undelivered_notice_is_dropped_when_it_expires(site: Site) -> None:
    delivery = site.delivery(NOWHERE, retry=replace(QUICK, keep_s=0.2))
    async with working(delivery):
        site.write("suggestion.made", OPEN)
        await until(lambda: delivery.counts.dropped)

    assert delivery.counts.retries > 0
    assert not delivery.counts.works


async def test_expired_notices_are_not_sent_after_a_long_stop(site: Site) -> None:
    async with receiving() as receiver:
        delivery = site.delivery(receiver.url)
        async with working(delivery):
            site.write("daemon.started", SERVING)
            await until(lambda: site.noted("daemon.restarted"))
        site.write("suggestion.made", OPEN)
        site.at += timedelta(days=1)
        site.state = SERVING
        again = site.delivery(receiver.url)
        async with working(again):
            await until(lambda: again.counts.dropped)

    assert len(receiver.seen) == 1


async def test_a_restart_neither_repeats_nor_skips_notices(site: Site) -> None:
    async with receiving() as receiver:
        async with working(site.delivery(receiver.url)):
            site.write("daemon.started", SERVING)
            site.write("suggestion.made", OPEN)
            await until(lambda: site.noted("suggestion.waiting"))
        site.write("suggestion.denied", DENIED)
        async with working(site.delivery(receiver.url)):
            site.write("daemon.started", replace(SERVING, epoch=4))
            await until(lambda: len(receiver.seen) == 4)

    titles = [body["attachments"][0]["title"] for body in receiver.bodies]
    assert [title.split()[-1] for title in titles] == ["3)", "UTC", "denied", "4)"]


async def test_records_before_the_first_start_are_not_sent(site: Site) -> None:
    site.write("suggestion.denied", DENIED)

    async with receiving() as receiver, working(site.delivery(receiver.url)):
        site.write("daemon.started", SERVING)
        await until(lambda: receiver.seen)

    assert len(receiver.seen) == 1


async def test_records_between_two_daemons_are_sent_even_if_the_first_sent_none(
    site: Site,
) -> None:
    async with receiving() as receiver:
        async with working(site.delivery(receiver.url, min_severity="critical")):
            await until(lambda: site.noted("seq"))
        site.write("server.lost", replace(SERVING, fleet=replace(SERVING.fleet, exited=("chat-r0",))))
        async with working(site.delivery(receiver.url, min_severity="critical")):
            await until(lambda: receiver.seen)

    assert "no server runs" in receiver.bodies[0]["attachments"][0]["title"]


async def test_reading_thousands_of_records_does_not_block_the_loop(site: Site) -> None:
    delivery, turns = site.delivery(NOWHERE, min_severity="critical"), 0
    for _ in range(700):
        site.write("target.observed", SERVING)

    async with working(delivery):
        while delivery._seq < 700:
            await asyncio.sleep(0)
            turns += delivery._seq > 0

    assert turns >= 600
    assert site.noted('"seq": 500')


async def test_ids_of_a_replaced_journal_are_dropped(site: Site) -> None:
    file = site.home / "notify" / "ops.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"seq": 10, "told": {"suggestion.waiting/chat-s1": "chat/suggestion"}}))

    async with receiving() as receiver, working(site.delivery(receiver.url)):
        site.write("suggestion.made", OPEN)
        await until(lambda: receiver.seen)


async def test_an_unwritable_audit_journal_and_its_recovery_are_sent(site: Site) -> None:
    site.writable = False
    async with receiving() as receiver:
        delivery = site.delivery(receiver.url, min_severity="critical")
        async with working(delivery):
            await until(lambda: site.noted("audit.unwritable"))
        site.writable = True
        async with working(site.delivery(receiver.url, min_severity="critical")):
            await until(lambda: len(receiver.seen) == 2)

    titles = [body["attachments"][0]["title"] for body in receiver.bodies]
    assert titles == ["the audit journal cannot be written", "the audit journal can be written again"]


async def test_an_anchor_is_sent_once_whatever_the_severity(site: Site) -> None:
    site.anchor = Head(seq=12, hash="ab" * 32)
    async with receiving() as receiver:
        async with working(site.delivery(receiver.url, min_severity="critical")):
            await until(lambda: site.noted("audit.anchor/12"))
        site.anchor = Head(seq=15, hash="cd" * 32)
        async with working(site.delivery(receiver.url, min_severity="critical")):
            await until(lambda: len(receiver.seen) == 2)

    assert find_anchors(str(body) for body in receiver.bodies) == {Head(seq=12, hash="ab" * 32), site.anchor}


async def test_a_receiver_of_warnings_gets_no_info(site: Site) -> None:
    async with receiving() as receiver, working(site.delivery(receiver.url, min_severity="warning")):
        site.write("suggestion.made", OPEN)
        site.write("server.lost", replace(SERVING, fleet=replace(SERVING.fleet, exited=("chat-r0",))))
        await until(lambda: receiver.seen)

    assert "no server runs" in receiver.bodies[0]["attachments"][0]["title"]


async def test_the_log_names_the_receiver_but_no_secret(site: Site) -> None:
    with structlog.testing.capture_logs() as logs:
        async with receiving(403) as receiver, working(site.delivery(receiver.url)) as delivery:
            site.write("suggestion.made", OPEN)
            await until(lambda: delivery.counts.failed)

    (line,) = logs
    assert (line["notifier"], line["why"]) == ("ops", "answered 403")
    assert "PLANTED" not in json.dumps(logs, default=str)
    assert "PLANTED" not in repr(OutgoingNotice(url=receiver.url, body=b""))


class Broken:
    def post(self, notice: Notice, at: datetime) -> OutgoingNotice:
        raise RuntimeError(f"{notice.id} at {at}")


async def test_an_exception_in_a_notifier_ends_only_its_delivery(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    delivery = site.delivery(NOWHERE)
    delivery.notifier = Broken()
    site.write("daemon.started", SERVING)
    delivery.head = 0

    with caplog.at_level(logging.CRITICAL), structlog.testing.capture_logs() as logs:
        await delivery.run()

    assert not delivery.counts.up
    assert [line["event"] for line in logs] == ["notifier.died"]


async def test_a_hanging_receiver_does_not_block_the_journal(site: Site) -> None:
    async with (
        receiving("hang") as receiver,
        working(site.delivery(receiver.url, retry=replace(QUICK, timeout_s=30.0))),
    ):
        site.write("suggestion.made", OPEN)
        await until(lambda: receiver.visited)
        for _ in range(50):
            site.write("target.observed", OPEN)

    assert site.journal.head.seq == 51


async def test_secrets_and_mentions_in_texts_are_masked(site: Site) -> None:
    proposal = replace(SUGGESTION.proposal, why="--api-key SECRET was seen <!channel> @all")
    async with receiving() as receiver, working(site.delivery(receiver.url)):
        made = replace(SUGGESTION, proposal=proposal)
        site.write("suggestion.made", replace(OPEN, suggestions=Suggestions(open=(made,))))
        await until(lambda: receiver.seen)

    text = receiver.bodies[0]["attachments"][0]["text"]
    assert "SECRET" not in text
    assert "&lt;!channel&gt; @\u2060all" in text
