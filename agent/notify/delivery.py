"""Takes notices to one place outside: in order, again and again until they are old, never in anybody's way.

The journal is the queue. What was told is kept in the state directory, and a restart goes on from there: each
notice is told at least once, and twice only when the daemon dies between the answer and the note of it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import aiohttp
import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_before_delay,
    wait_random_exponential,
)

from agent.audit.records import BrokenLineError, JournalRecord, parse_state
from agent.domain.errors import JournalError, NoticeError
from agent.domain.ports import Now
from agent.domain.state import State
from agent.notify.rules import (
    RECOVERIES,
    Notice,
    NoticeSeverity,
    Notifier,
    OutgoingNotice,
    of_moment,
    of_record,
    wanted,
)
from vllm_facts.masking import mask

LOOK_EVERY_S = 5.0
AGAIN_S = 60.0  # for a journal that cannot be read
REMEMBERED = 500  # ids; those of trouble that has not ended are never forgotten
NOTED_EVERY = 500  # records: so many at most are looked at again after a restart
LONGEST_TITLE, LONGEST_TEXT = 300, 2000
REFUSED, SERVER_FAILS, TOO_MANY, TIMED_OUT = 400, 500, 429, 408
log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    timeout_s: float = 10.0  # for one answer
    first_s: float = 1.0  # before the second try; then twice as long each time, with jitter
    longest_s: float = 60.0
    keep_s: float = 3600.0  # a notice of that age is dropped

    def wait(self, tried: RetryCallState) -> float:
        """As long as the receiver asks for, or exponentially longer each time."""
        error = tried.outcome.exception() if tried.outcome else None
        jittered: float = wait_random_exponential(multiplier=self.first_s, max=self.longest_s)(tried)
        asked = error.after_s if isinstance(error, NoticeError) else None
        return jittered if asked is None else asked + jittered / 10


@dataclass(slots=True)
class DeliveryCounts:
    """What became of the notices, for /metrics."""

    sent: int = 0
    failed: int = 0  # refused by the receiver
    dropped: int = 0  # grown old
    retries: int = 0
    works: bool = True  # the last try succeeded
    up: bool = True  # it still looks for notices


@dataclass(slots=True, kw_only=True)
class NoticeDelivery:
    """One `[[notify]]` of the config. `file`: what it has told; `follow`: the records after a number."""

    name: str
    notifier: Notifier
    least: NoticeSeverity
    file: Path
    console: str  # URL of the console; empty: notices have no link
    now: Now
    follow: Callable[[int | None], AsyncIterator[JournalRecord]] | None  # None: there is no journal to follow
    head: int  # number of the last record when the daemon started
    states: Callable[[], Mapping[str, State]]
    writable: Callable[[], bool]
    patience: RetryLimits = field(default_factory=RetryLimits)
    tally: DeliveryCounts = field(default_factory=DeliveryCounts)
    _seq: int = 0
    _told: dict[str, str] = field(default_factory=dict)  # id to key
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Until cancelled. What goes wrong here is logged, and ends no other task."""
        try:
            self._seq, self._told = await asyncio.to_thread(remembered, self.file, self.head)
            await asyncio.to_thread(self._save)
            async with self._session() as session, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow(session))
                tasks.create_task(self._watch(session))
        except Exception:  # a rollout goes on, whatever is wrong with a message
            self.tally.up = False
            log.exception("notifier.died", notifier=self.name)

    async def test(self) -> None:
        """A test message, tried once; where only trouble is taken, one that ends. Raises NoticeError."""
        notice = self._dressed(trial(self.now()))
        async with self._session() as session:
            if not await self._try(session, notice):
                await self._try(session, replace(notice, key="test"))
                await self._try(session, replace(notice, key="test", ends=True))

    def check(self) -> None:
        """Raises NoticeError when what a post needs cannot be read here."""
        self.notifier.post(replace(trial(self.now()), key="test"), self.now())

    def _session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=self.patience.timeout_s)
        return aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())

    async def _follow(self, session: aiohttp.ClientSession) -> None:
        while self.follow is not None:
            try:
                async for record in self.follow(self._seq):
                    for notice in notices_of(record):
                        await self._offer(session, notice)
                    await self._pass(record["seq"])
            except JournalError as error:
                log.warning("notifier.journal_unreadable", notifier=self.name, why=str(error))
            await asyncio.sleep(AGAIN_S)

    async def _pass(self, seq: int) -> None:
        """On to the next record, after everybody else had a turn: there may be thousands."""
        async with self._one:
            self._seq = seq
            if seq % NOTED_EVERY == 0:
                await asyncio.to_thread(self._save)
        await asyncio.sleep(0)

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        while True:
            for notice in of_moment(self.states(), self.now(), writable=self.writable()):
                await self._offer(session, notice)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _offer(self, session: aiohttp.ClientSession, notice: Notice) -> None:
        async with self._one:
            if not wanted(notice, self.least, self._told):
                return
            await self._send(session, self._dressed(notice))
            self._remember(notice)
            await asyncio.to_thread(self._save)

    def _dressed(self, notice: Notice) -> Notice:
        """With its link; short, and without secrets, wherever its words came from."""
        return replace(
            notice,
            title=mask(" ".join(notice.title.split()))[:LONGEST_TITLE],
            text=mask(notice.text)[:LONGEST_TEXT],
            link=f"{self.console}/#{notice.place}" if self.console else "",
        )

    async def _send(self, session: aiohttp.ClientSession, notice: Notice) -> None:
        left_s = self.patience.keep_s - (self.now() - notice.at).total_seconds()
        about = {"notifier": self.name, "notice": notice.id, "target": notice.target}
        if left_s <= 0:
            self.tally.dropped += 1
            log.warning("notice.too_old", **about)
            return
        try:
            trying = AsyncRetrying(
                retry=retry_if_exception(lambda error: isinstance(error, NoticeError) and error.passes),
                wait=self.patience.wait,
                stop=stop_before_delay(left_s),
                before_sleep=self._fails,
                reraise=True,
            )
            self.tally.sent += await trying(self._try, session, notice)
            self.tally.works = True
        except NoticeError as error:
            self.tally.works = False
            self.tally.failed += not error.passes
            self.tally.dropped += error.passes
            log.warning("notice.not_sent", **about, why=str(error))

    async def _try(self, session: aiohttp.ClientSession, notice: Notice) -> bool:
        """Whether there was something to send. Raises NoticeError."""
        post = self.notifier.post(notice, self.now())
        if post is not None:
            await deliver(session, post)
        return post is not None

    def _fails(self, _: RetryCallState) -> None:
        self.tally.retries += 1
        self.tally.works = False

    def _remember(self, notice: Notice) -> None:
        """What has ended may come again; of the rest the oldest is forgotten."""
        if notice.ends:
            self._told = {id_: key for id_, key in self._told.items() if key != notice.key}
        if notice.kind not in RECOVERIES:
            self._told[notice.id] = "" if notice.ends else notice.key
        settled = [id_ for id_, key in self._told.items() if not key]
        for id_ in settled[:-REMEMBERED]:
            del self._told[id_]

    def _save(self) -> None:
        try:
            self.file.parent.mkdir(mode=0o700, exist_ok=True)
            beside = self.file.with_suffix(".new")
            beside.write_text(json.dumps({"seq": self._seq, "told": self._told}), encoding="utf-8")
            beside.replace(self.file)
        except OSError as error:
            log.warning("notifier.forgets", notifier=self.name, why=error.strerror)


def trial(at: datetime) -> Notice:
    """What `trimtab notify test` sends."""
    return Notice(
        id=f"test/{at.isoformat()}",
        kind="daemon.restarted",
        at=at,
        title="a test message from trimtab",
        text="`trimtab notify test` was run: there is nothing to do.",
        place="/",
    )


def remembered(file: Path, head: int) -> tuple[int, dict[str, str]]:
    """Number of the last record looked at, and what was told; from now on, where nothing is known of this
    journal: one that ends before that number is another one, whose ids begin anew."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        found = json.loads(file.read_text(encoding="utf-8"))
        told = {str(id_): str(key) for id_, key in found["told"].items()}
        if int(found["seq"]) <= head:
            return int(found["seq"]), told
    return head, {}


def notices_of(record: JournalRecord) -> Iterator[Notice]:
    try:
        state = parse_state(record)
    except BrokenLineError:  # of another version: its time is over anyway
        return
    if state is not None:
        yield from of_record(record["action"], state, datetime.fromisoformat(record["ts"]))


async def deliver(session: aiohttp.ClientSession, post: OutgoingNotice) -> None:
    """Raises NoticeError; it never repeats what the receiver wrote, nor the URL."""
    headers = {"User-Agent": "trimtab", "Content-Type": "application/json", **post.headers}
    try:
        async with session.post(post.url, data=post.body, headers=headers, allow_redirects=False) as answer:
            status, after = answer.status, answer.headers.get("Retry-After", "")
    except TimeoutError:
        raise NoticeError("no answer in time", passes=True) from None
    except aiohttp.InvalidURL:
        raise NoticeError("the URL is none that can be asked") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NoticeError(f"cannot be reached: {type(error).__name__}", passes=True) from None
    if status < 300:  # noqa: PLR2004 - HTTP's own edge
        return
    if status < REFUSED:
        raise NoticeError(f"answered {status}: it sends us elsewhere, where a secret must not follow")
    passes = status >= SERVER_FAILS or status in {TOO_MANY, TIMED_OUT}
    raise NoticeError(f"answered {status}", passes=passes, after_s=_seconds(after) if passes else None)


def _seconds(after: str) -> float | None:
    """Of a Retry-After in seconds; a date is not worth the trouble."""
    return min(float(after), 600.0) if after.isascii() and after.isdecimal() and len(after) < 9 else None  # noqa: PLR2004
