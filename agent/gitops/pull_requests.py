"""Keeps a pull request for each open suggestion of a target whose command lives in git.

Merging it approves the suggestion, in the name of the person who merged. One that ended without a rollout is
closed; a change that was merged and then rolled back gets a pull request that takes it back. So does one that
another tool or a person applied, without a rollout, if the servers are worse with it.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog

from flettner.agent.api.people import find_person
from flettner.agent.api.tokens import Holder
from flettner.agent.config.git import GitOptions
from flettner.agent.config.listen import Role
from flettner.agent.domain.errors import ForgeError
from flettner.agent.domain.events import AppliedChangeCompared, Approved, Event
from flettner.agent.domain.ports import Now
from flettner.agent.domain.rollout import Rollout
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.domain.upgrade import upgrades_in
from flettner.agent.gitops.applied_changes import compare_minutes
from flettner.agent.gitops.forge import PullRequest, PullRequestText
from flettner.agent.gitops.repository import GitRepository
from flettner.agent.gitops.texts import (
    describe_comparison,
    describe_regression,
    describe_reversal,
    describe_suggestion,
)
from flettner.agent.observe.minute_rows import MinuteRow
from flettner.primitives.files import replace_file
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.verified_edits import change_flags
from flettner.vllm_facts.values import Setting, Value

LOOK_EVERY_S = 20.0
TRIED_EVERY_S = 600.0  # where it failed: each attempt is a clone
MOST_KEPT = 50  # of those that are settled
APPLIED_WITHIN_S = 86_400.0  # after a merge; later minutes are not compared with those before it
log = structlog.get_logger(__name__)


class DecidedTarget(Protocol):
    @property
    def state(self) -> State: ...
    def emit(self, event: Event) -> None: ...


@dataclass(slots=True, kw_only=True)
class TrackedRequest:
    """A pull request of ours, as the state directory has it."""

    suggestion: str
    number: int
    url: str
    commit: str  # that was pushed
    digest: str  # that its text shows
    merged: bool = False
    settled: bool = False  # nothing is left to do
    refused: str = ""  # why its merge was no approval
    before: Mapping[str, Value] = field(default_factory=dict)  # present values of the changed knobs
    to: Mapping[str, Value] = field(default_factory=dict)
    rolled_out: bool = False  # by a rollout of ours
    merged_at: float = 0.0  # Unix time, s, at which the merge was seen; 0: it was not
    applied_at: float = 0.0  # Unix time, s, since which all servers run with `to`; 0: they do not


@dataclass(slots=True)
class PullRequests:
    options: GitOptions
    file: Path
    now: Now
    minutes: Callable[[], Sequence[MinuteRow]]  # of the target, oldest first
    tracked: dict[str, TrackedRequest] = field(default_factory=dict)  # by suggestion
    _failed_at: dict[str, float] = field(default_factory=dict)  # by suggestion: loop time

    def __post_init__(self) -> None:
        with suppress(OSError, ValueError, TypeError):
            rows = json.loads(self.file.read_text(encoding="utf-8"))
            self.tracked = {row["suggestion"]: TrackedRequest(**row) for row in rows}

    async def run(self, target: DecidedTarget) -> None:
        """Run until cancelled. What fails is logged, and tried again."""
        while True:
            await self.update(target)
            await asyncio.sleep(LOOK_EVERY_S)

    async def update(self, target: DecidedTarget) -> None:
        state = target.state
        for suggestion in state.suggestions.open:
            if suggestion.id not in self.tracked:
                await self._attempt(suggestion.id, self._open(state, suggestion))
        for tracked in [each for each in self.tracked.values() if not each.settled]:
            await self._attempt(tracked.suggestion, self._follow(tracked, target))

    async def _attempt(self, suggestion: str, work: Any) -> None:  # noqa: ANN401 - a coroutine
        """Do the work unless it failed some minutes ago."""
        clock = asyncio.get_running_loop().time
        if clock() - self._failed_at.get(suggestion, float("-inf")) < TRIED_EVERY_S:
            work.close()
            return
        try:
            await work
        except (ForgeError, FlagError) as error:
            self._failed_at[suggestion] = clock()
            log.warning("pull_request.failed", suggestion=suggestion, why=str(error))
        else:
            self._failed_at.pop(suggestion, None)

    async def _open(self, state: State, suggestion: Suggestion) -> None:
        text = describe_suggestion(state, suggestion, self.options.branch)
        commit = await self._push(text, suggestion.proposal.to)
        made = await self.options.forge.open(text, self.options.read_token())
        self.tracked[suggestion.id] = TrackedRequest(
            suggestion=suggestion.id,
            number=made.number,
            url=made.url,
            commit=commit,
            digest=suggestion.digest,
            before=dict(suggestion.before),
            to=dict(suggestion.proposal.to),
        )
        self._save()
        log.info("pull_request.opened", suggestion=suggestion.id, url=made.url, branch=text.branch)

    async def _push(self, text: PullRequestText, to: Setting) -> str:
        git = self.options
        repository = GitRepository(url=git.repository, branch=git.branch, path=git.path)
        return await repository.push(
            text.branch,
            lambda content: change_flags(Path(git.path).name, content, git.server, to),
            f"{text.title}\n\n{text.body}",
            git.read_token(),
        )

    async def _follow(self, tracked: TrackedRequest, target: DecidedTarget) -> None:
        request = await self.options.forge.read(tracked.number, self.options.read_token())
        state = target.state
        pending = state.suggestions.find_pending(tracked.suggestion)
        rollout = state.rollout
        if rollout is not None and rollout.suggestion.id != tracked.suggestion:
            rollout = None
        tracked.rolled_out |= rollout is not None
        if request.state == "merged":
            await self._follow_merged(tracked, request, target, pending, rollout)
        elif request.state == "closed":
            tracked.settled = True
        elif pending is not None:
            await self._rewrite(tracked, state, pending)
        elif rollout is None or rollout.outcome == "rolled_back":
            await self.options.forge.close(tracked.number, self.options.read_token())
            tracked.settled = True
            log.info("pull_request.closed", suggestion=tracked.suggestion, url=tracked.url)
        self._save()

    async def _rewrite(self, tracked: TrackedRequest, state: State, pending: Suggestion) -> None:
        """Show the present version, so that merging approves that one."""
        if pending.status != "open" or pending.digest == tracked.digest:
            return
        text = describe_suggestion(state, pending, self.options.branch)
        await self.options.forge.rewrite(tracked.number, text, self.options.read_token())
        after = await self.options.forge.read(tracked.number, self.options.read_token())
        if (
            after.state == "open"
        ):  # else it was merged meanwhile, by a person who may have seen the text before
            tracked.digest = pending.digest

    async def _follow_merged(
        self,
        tracked: TrackedRequest,
        request: PullRequest,
        target: DecidedTarget,
        pending: Suggestion | None,
        rollout: Rollout | None,
    ) -> None:
        tracked.merged = True
        tracked.merged_at = tracked.merged_at or self.now().timestamp()
        if pending is not None:
            self._approve(tracked, request, target, pending)
        elif rollout is not None and rollout.outcome == "rolled_back":
            await self._take_back(rollout)
            tracked.settled = True
        elif rollout is None and tracked.to and not tracked.rolled_out:
            await self._follow_applied(tracked, target)
        elif rollout is None or rollout.outcome == "promoted":
            tracked.settled = True

    async def _follow_applied(self, tracked: TrackedRequest, target: DecidedTarget) -> None:
        """Compare the servers with a change that others apply with those before it."""
        now_s = self.now().timestamp()
        if now_s - (tracked.applied_at or tracked.merged_at) > APPLIED_WITHIN_S:
            tracked.settled = True
            return
        if not _is_in_force(target.state, tracked.to):
            tracked.settled = bool(tracked.applied_at and target.state.fleet.servers)  # changed again
            return
        tracked.applied_at = tracked.applied_at or now_s
        comparison = compare_minutes(self.minutes(), tracked.merged_at, tracked.applied_at)
        if comparison.verdict == "open":
            return
        if comparison.verdict == "worse":
            text = describe_regression(
                target.state.target,
                tracked.suggestion,
                tracked.before,
                tracked.to,
                comparison.why,
                self.options.branch,
            )
            await self._open_reversal(text, tracked.before, tracked.suggestion, comparison.why)
        why = describe_comparison(tracked.suggestion, tracked.url, comparison)
        target.emit(AppliedChangeCompared(at=self.now(), why=why))
        tracked.settled = True

    def _approve(
        self, tracked: TrackedRequest, request: PullRequest, target: DecidedTarget, pending: Suggestion
    ) -> None:
        """Approve what the pull request showed, if the one who merged may and the branch was not changed."""
        state = target.state
        if pending.held or state.mode == "advise" or pending.approved_by or pending.status != "open":
            return  # what was merged is applied by another tool, or by a person
        person = find_person(self.options.people, request.merged_by)
        why = _why_no_approval(tracked, request, pending, person, self.options.branch)
        if why or person is None:
            if why != tracked.refused:
                tracked.refused = why
                log.warning("pull_request.not_approved", suggestion=pending.id, url=tracked.url, why=why)
            return
        target.emit(
            Approved(
                at=self.now(),
                actor=person.principal,
                suggestion=pending.id,
                digest=tracked.digest,
                comment=f"by merging {tracked.url} as {request.merged_by}",
            )
        )

    async def _take_back(self, rollout: Rollout) -> None:
        text = describe_reversal(rollout, self.options.branch)
        await self._open_reversal(text, rollout.suggestion.before, rollout.suggestion.id, rollout.why)

    async def _open_reversal(self, text: PullRequestText, before: Setting, suggestion: str, why: str) -> None:
        await self._push(text, before)
        made = await self.options.forge.open(text, self.options.read_token())
        log.warning(
            "pull_request.reversal_opened", suggestion=suggestion, url=made.url, branch=text.branch, why=why
        )

    def _save(self) -> None:
        settled = [name for name, tracked in self.tracked.items() if tracked.settled]
        for name in settled[:-MOST_KEPT]:
            del self.tracked[name]
        rows = [asdict(tracked) for tracked in self.tracked.values()]
        try:
            replace_file(self.file, json.dumps(rows).encode(), mode=0o600)
        except OSError as error:
            log.warning("pull_request.unwritable", why=error.strerror)


def _is_in_force(state: State, to: Setting) -> bool:
    """Whether each server runs with these values; None: the flag is not given."""
    servers = state.fleet.servers
    return bool(servers) and all(
        server.setting.get(knob) == value for server in servers for knob, value in to.items()
    )


def _why_no_approval(
    tracked: TrackedRequest, request: PullRequest, pending: Suggestion, person: Holder | None, branch: str
) -> str:
    if request.base != branch:  # which other rules may protect, such as those about reviews
        return f"it was merged into {request.base}, not into {branch}"
    if request.head != tracked.commit:
        return "its branch was changed: the commit that was merged is not flettner's"
    if person is None:
        return f"[targets.git] people does not name {request.merged_by or 'who merged it'}"
    needed: Role = "admin" if upgrades_in(pending.proposal.to) else "operator"
    if not person.allows(needed):
        return f"{request.merged_by} has the role {person.role}, and this takes {needed}"
    if pending.digest != tracked.digest:
        return "the suggestion has changed since the pull request showed it: approve it in the console"
    return ""
