"""Delivers notices to one receiver: in order, with retries until they expire, without delaying the daemon.

The journal is the queue. The progress is kept in the state directory, and a restart continues from it: each
notice is sent at least once, and twice only if the daemon dies between the answer and saving the progress.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from urllib.parse import quote

import aiohttp
import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    retry_if_exception_type,
    wait_fixed,
    wait_random_exponential,
)

from flettner.agent.audit.anchors import anchor_text
from flettner.agent.audit.chain import Head
from flettner.agent.audit.records import BrokenLineError, JournalRecord, parse_state
from flettner.agent.domain.errors import JournalError, NoticeError
from flettner.agent.domain.ports import Now
from flettner.agent.domain.state import State
from flettner.agent.notify.mail import send_mail
from flettner.agent.notify.reachability import describe_failure
from flettner.agent.notify.rules import (
    RECOVERIES,
    Notice,
    NoticeSeverity,
    Notifier,
    OutgoingMail,
    OutgoingNotice,
    anchor_notice,
    notices_of_record,
    notices_of_states,
    should_send,
)
from flettner.agent.retrying import ReasonLog, failure, retry, stop_before
from flettner.primitives.files import replace_file
from flettner.redaction import mask

POLL_S = 5.0
REOPEN_S = 60.0  # until an unreadable journal is tried again
MAX_IDS = 500  # ids of sent notices kept; those of open incidents are always kept
SAVE_EVERY = 500  # records: at most so many are read again after a restart
LONGEST_TITLE, LONGEST_TEXT = 300, 2000
REFUSED, SERVER_FAILS, TOO_MANY, TIMED_OUT = 400, 500, 429, 408
log = structlog.get_logger()

Follow = Callable[[int | None], AsyncIterator[JournalRecord]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    timeout_s: float = 10.0  # of one request
    first_s: float = 1.0  # before the second attempt; doubled each time, with jitter
    longest_s: float = 60.0
    keep_s: float = 3600.0  # age at which a notice is dropped

    def wait(self, tried: RetryCallState) -> float:
        """Return the delay that the receiver asks for, else an exponential backoff."""
        error = failure(tried)
        jittered: float = wait_random_exponential(multiplier=self.first_s, max=self.longest_s)(tried)
        asked = error.after_s if isinstance(error, NoticeError) else None
        return jittered if asked is None else asked + jittered / 10


@dataclass(slots=True)
class DeliveryCounts:
    """Outcomes of the notices, for /metrics."""

    sent: int = 0
    failed: int = 0  # refused by the receiver
    dropped: int = 0  # expired
    retries: int = 0
    works: bool = True  # the last attempt succeeded
    up: bool = True  # the delivery runs


@dataclass(slots=True, kw_only=True)
class NoticeDelivery:
    """Delivery for one `[[notify]]`. `file`: its progress; `follow`: the records after a seq."""

    name: str
    notifier: Notifier
    min_severity: NoticeSeverity
    file: Path
    console: str  # URL of the console; empty: notices have no link
    now: Now
    follow: Follow | None  # None: no journal
    head: int  # seq of the last record when the daemon started
    states: Callable[[], Mapping[str, State]]
    writable: Callable[[], bool]  # the journal
    full: Callable[[], bool]
    anchor: Callable[[], Head | None] = lambda: None  # for receivers of anchors: the latest
    retry: RetryLimits = field(default_factory=RetryLimits)
    counts: DeliveryCounts = field(default_factory=DeliveryCounts)
    _seq: int = 0
    _sent: dict[str, str] = field(default_factory=dict)  # id to key
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Run until cancelled. Errors are logged and end no other task."""
        try:
            self._seq, self._sent = await asyncio.to_thread(load_progress, self.file, self.head)
            await asyncio.to_thread(self._save_progress)
            async with self._session() as session, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow(session))
                tasks.create_task(self._watch(session))
        except Exception:  # an error in a message must not stop a rollout
            self.counts.up = False
            log.exception("notifier.died", notifier=self.name)

    async def test(self) -> None:
        """Send a test message, or a test incident to receivers of incidents only. Raises NoticeError."""
        notice = self.finalize(build_test_notice(self.now()))
        async with self._session() as session:
            if not await self._send_once(session, notice, set()):
                await self._send_once(session, replace(notice, key="test"), set())
                await self._send_once(session, replace(notice, key="test", ends=True), set())

    def check(self) -> None:
        """Raise NoticeError if a file that a post needs cannot be read."""
        self.notifier.post(replace(build_test_notice(self.now()), key="test"), self.now())

    def _session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=self.retry.timeout_s)
        return aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())

    async def _follow(self, session: aiohttp.ClientSession) -> None:
        if self.follow is None:
            return
        following = AsyncRetrying(
            retry=retry_if_exception_type(JournalError),
            wait=wait_fixed(REOPEN_S),
            before_sleep=ReasonLog("notifier.journal_unreadable", {"notifier": self.name}),
        )
        await retry(following, partial(self._send_records, session, self.follow))

    async def _send_records(self, session: aiohttp.ClientSession, follow: Follow) -> None:
        async for record in follow(self._seq):
            for notice in parse_notices(record):
                await self._send_new(session, notice)
            await self._advance(record["seq"])

    async def _advance(self, seq: int) -> None:
        """Advance to the next record and yield to other tasks: thousands of records may follow."""
        async with self._lock:
            self._seq = seq
            if seq % SAVE_EVERY == 0:
                await asyncio.to_thread(self._save_progress)
        await asyncio.sleep(0)

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        while True:
            faults = {"writable": self.writable(), "full": self.full()}
            for notice in notices_of_states(self.states(), self.now(), **faults):
                await self._send_new(session, notice)
            if head := self.anchor():
                await self._send_new(session, anchor_notice(head.seq, anchor_text(head), self.now()))
            await asyncio.sleep(POLL_S)

    async def _send_new(self, session: aiohttp.ClientSession, notice: Notice) -> None:
        async with self._lock:
            if not should_send(notice, self.min_severity, self._sent):
                return
            await self._send_with_retries(session, self.finalize(notice))
            self._mark_sent(notice)
            await asyncio.to_thread(self._save_progress)

    def finalize(self, notice: Notice) -> Notice:
        """Add the link, mask secrets, and limit the length."""
        return replace(
            notice,
            title=mask(" ".join(notice.title.split()))[:LONGEST_TITLE],
            text=mask(notice.text)[:LONGEST_TEXT],
            link=f"{self.console}/#{notice.place}" if self.console else "",
            decisions=self.decisions,
        )

    @property
    def decisions(self) -> str:
        """Where what people decide by this receiver arrives; its links and buttons count nowhere else."""
        return f"{self.console}/v1/decisions/{quote(self.name)}"

    async def _send_with_retries(self, session: aiohttp.ClientSession, notice: Notice) -> None:
        left_s = self.retry.keep_s - (self.now() - notice.at).total_seconds()
        fields = {"notifier": self.name, "notice": notice.id, "target": notice.target}
        if left_s <= 0:
            self.counts.dropped += 1
            log.warning("notice.too_old", **fields)
            return
        try:
            trying = AsyncRetrying(
                retry=retry_if_exception(lambda error: isinstance(error, NoticeError) and error.passes),
                wait=self.retry.wait,
                stop=stop_before(left_s),
                before_sleep=self._count_retry,
                reraise=True,
            )
            self.counts.sent += await retry(trying, partial(self._send_once, session, notice, set()))
            self.counts.works = True
        except NoticeError as error:
            self.counts.works = False
            self.counts.failed += not error.passes
            self.counts.dropped += error.passes
            log.warning("notice.not_sent", **fields, why=str(error))

    async def _send_once(self, session: aiohttp.ClientSession, notice: Notice, accepted: set[str]) -> bool:
        """Send the notice; False if the receiver cannot use it. Raises NoticeError.

        `accepted`: Message-IDs of the mails that an earlier try has sent.
        """
        post = self.notifier.post(notice, self.now())
        if isinstance(post, OutgoingMail):
            await asyncio.to_thread(send_mail, post, self.retry.timeout_s, accepted)
        elif post is not None:
            await deliver(session, post)
        return post is not None

    def _count_retry(self, _: RetryCallState) -> None:
        self.counts.retries += 1
        self.counts.works = False

    def _mark_sent(self, notice: Notice) -> None:
        """Record the notice as sent. A resolved incident may open again; the oldest other ids are dropped."""
        if notice.ends:
            self._sent = {id_: key for id_, key in self._sent.items() if key != notice.key}
        if notice.kind not in RECOVERIES:
            self._sent[notice.id] = "" if notice.ends else notice.key
        resolved = [id_ for id_, key in self._sent.items() if not key]
        for id_ in resolved[:-MAX_IDS]:
            del self._sent[id_]

    def _save_progress(self) -> None:
        try:
            self.file.parent.mkdir(mode=0o700, exist_ok=True)
            replace_file(self.file, json.dumps({"seq": self._seq, "told": self._sent}).encode())
        except OSError as error:
            log.warning("notifier.progress_unwritable", notifier=self.name, why=error.strerror)


def build_test_notice(at: datetime) -> Notice:
    """Build the notice that `flettner notify test` sends."""
    return Notice(
        id=f"test/{at.isoformat()}",
        kind="daemon.restarted",
        at=at,
        title="a test message from flettner",
        text="Sent by `flettner notify test`. No action is needed.",
        place="/",
    )


def load_progress(file: Path, head: int) -> tuple[int, dict[str, str]]:
    """Load the seq of the last processed record and the sent ids; `head` and none without valid progress.

    A journal that ends before that seq is another journal, whose ids start again.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        progress = json.loads(file.read_text(encoding="utf-8"))
        sent = {str(id_): str(key) for id_, key in progress["told"].items()}
        if int(progress["seq"]) <= head:
            return int(progress["seq"]), sent
    return head, {}


def parse_notices(record: JournalRecord) -> Iterator[Notice]:
    try:
        state = parse_state(record)
    except BrokenLineError:  # of another version; such a record is too old to notify
        return
    if state is not None:
        yield from notices_of_record(record["action"], state, datetime.fromisoformat(record["ts"]))


async def deliver(session: aiohttp.ClientSession, post: OutgoingNotice) -> None:
    """Send the request. Raises NoticeError, which contains neither the answer's body nor the URL."""
    headers = {"User-Agent": "flettner", "Content-Type": "application/json", **post.headers}
    try:
        async with session.post(post.url, data=post.body, headers=headers, allow_redirects=False) as answer:
            status, after = answer.status, answer.headers.get("Retry-After", "")
    except TimeoutError:
        raise NoticeError("no answer in time", passes=True) from None
    except aiohttp.InvalidURL:
        raise NoticeError("the URL is invalid") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NoticeError(f"cannot be reached: {describe_failure(error)}", passes=True) from None
    if status < 300:  # noqa: PLR2004 - HTTP status class
        return
    if status < REFUSED:
        raise NoticeError(
            f"answered {status}: redirects are not followed, because the request contains secrets"
        )
    passes = status >= SERVER_FAILS or status in {TOO_MANY, TIMED_OUT}
    raise NoticeError(f"answered {status}", passes=passes, after_s=_seconds(after) if passes else None)


def _seconds(after: str) -> float | None:
    """Parse a Retry-After header in seconds; dates are not supported."""
    return min(float(after), 600.0) if after.isascii() and after.isdecimal() and len(after) < 9 else None  # noqa: PLR2004
