"""Suggestions as branches of a real bare repository and pull requests of a stand-in of each forge."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flettner.agent.config.git import GitOptions
from flettner.agent.domain.events import Approved, Event
from flettner.agent.domain.model import Evidence, PreflightResult
from flettner.agent.domain.state import Phase, State
from flettner.agent.domain.suggestion import Suggestion, Suggestions
from flettner.agent.gitops import pull_requests
from flettner.agent.gitops.pull_requests import PullRequests
from flettner.agent.machine.guard import base_digest
from flettner.agent.machine.step import Machine
from flettner.forges.none import NoForge
from tests.support.forge_stand_in import KINDS, TOKEN, ForgeStandIn, forge_stand_in
from tests.support.machine_stories import BLUE, NOON, PLAN, rules
from tests.unit.notify.test_rules import ROLLOUT, SERVING, SUGGESTION

COMPOSE = """\
services:
  chat:  # the only one
    image: vllm/vllm-openai:v0.12.0
    command: [--model, m, --max-num-seqs, "4"]
"""
MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  template:
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.12.0
          args:
            - --model=m
            - --max-num-seqs=4
"""
SCRIPT = "#!/bin/sh\n# starts chat\nexec vllm serve m --max-num-seqs 4\n"
UNIT = "[Service]\nExecStart=/usr/bin/vllm serve m --max-num-seqs 4\n"
VALUES = """\
servingEngineSpec:
  modelSpec:
    - name: chat  # of the chart of production-stack
      repository: vllm/vllm-openai
      tag: v0.12.0
      modelURL: m
      vllmConfig:
        extraArgs: [--max-num-seqs=4]
"""
FILES = {
    "compose.yaml": COMPOSE,
    "chat.yaml": MANIFEST,
    "start.sh": SCRIPT,
    "vllm.service": UNIT,
    "values.yaml": VALUES,
}
DIGEST = "sha256:" + "a" * 64
OPEN = replace(
    SUGGESTION,
    digest=DIGEST,
    base=base_digest(BLUE.setting),
    plan=PLAN,
    notes=("surge: two GPUs are free",),
    proposal=replace(
        SUGGESTION.proposal,
        to={"max_num_seqs": 16},
        why="12 requests of @all wait <img>",
        evidence=(Evidence(metric="waiting", value=12, unit="requests", window_s=60),),
    ),
)
PEOPLE: Any = {"alice": ("alice", "operator"), "vera": ("vera", "viewer"), "bob": ("bob", "operator")}


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=ann", "-c", "user.email=ann@localhost", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


@dataclass
class Repository:
    """A bare repository with one file in `main`."""

    home: Path
    path: str = "deploy/compose.yaml"
    content: str = COMPOSE

    def __post_init__(self) -> None:
        git(self.home, "init", "--quiet", "--bare", "repository.git")
        git(self.home, "clone", "--quiet", str(self.bare), "work")
        self.commit(self.content)

    @property
    def bare(self) -> Path:
        return self.home / "repository.git"

    def commit(self, content: str, branch: str = "main") -> None:
        work = self.home / "work"
        if branch != "main":
            git(work, "fetch", "--quiet", "origin", branch)
            git(work, "checkout", "--quiet", "-B", branch, "FETCH_HEAD")
        file = work / self.path
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
        git(work, "add", ".")
        git(work, "commit", "--quiet", "--message", "an edit")
        git(work, "push", "--quiet", "origin", f"HEAD:refs/heads/{branch}")

    def read(self, branch: str) -> str:
        return git(self.bare, "show", f"{branch}:{self.path}")

    def branches(self) -> set[str]:
        return set(git(self.bare, "for-each-ref", "--format=%(refname:short)").split())

    def head(self, branch: str) -> str:
        return git(self.bare, "rev-parse", branch).strip()

    def merge(self, branch: str) -> None:
        git(self.bare, "update-ref", "refs/heads/main", self.head(branch))


def waiting(*suggestions: Suggestion) -> State:
    phase = Phase.PROPOSED if suggestions else Phase.OBSERVING
    return replace(SERVING, phase=phase, suggestions=Suggestions(open=suggestions))


@dataclass
class Target:
    state: State
    events: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        """Let the real machine decide."""
        self.events.append(event)
        self.state, _ = Machine(rules()).step(self.state, event)


@dataclass
class Site:
    repository: Repository
    forge: ForgeStandIn
    requests: PullRequests
    target: Target

    async def update(self) -> None:
        self.requests._failed_at.clear()
        await self.requests.update(self.target)

    def set(self, *suggestions: Suggestion, **values: Any) -> None:  # noqa: ANN401 - fields of a state
        self.target.state = replace(waiting(*suggestions), **values)

    def merge(self, by: str, number: int = 1) -> None:
        self.repository.merge(self.forge.pulls[number - 1].branch)
        self.forge.merge(by, number)

    @property
    def approvals(self) -> list[tuple[str, str]]:
        return [(event.actor, event.digest) for event in self.target.events if isinstance(event, Approved)]


def options_of(repository: Repository, plugin: object, **values: Any) -> GitOptions:  # noqa: ANN401
    (repository.home / "token").write_text(TOKEN + "\n")
    return GitOptions(
        repository=str(repository.bare),
        branch="main",
        path=repository.path,
        forge=plugin,
        token_file=repository.home / "token",
        people=PEOPLE,
        **{"server": "", **values},
    )


@asynccontextmanager
async def build_site(home: Path, kind: str = "github") -> AsyncIterator[Site]:
    repository = Repository(home)
    async with forge_stand_in(kind) as forge:
        forge.head_of = repository.head
        options = options_of(repository, forge.plugin)
        requests = PullRequests(
            options=options, file=home / "pull_requests.json", now=lambda: NOON, minutes=list
        )
        target = Target(waiting(OPEN))
        yield Site(repository, forge, requests, target)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with build_site(tmp_path) as site:
        yield site


@pytest.mark.smoke
@pytest.mark.parametrize("kind", KINDS)
async def test_merging_the_pull_request_approves_the_suggestion(tmp_path: Path, kind: str) -> None:
    async with build_site(tmp_path, kind) as site:
        await site.update()
        (pull,) = site.forge.pulls
        edited = site.repository.read("flettner/chat-s1")
        site.merge("alice")
        await site.update()

    assert edited == COMPOSE.replace('"4"', '"16"')
    assert pull.title == "chat: max_num_seqs 4 → 16"
    assert "12 requests of @\u2060all wait &lt;img>." in pull.body
    assert "- Rollout: surge: two GPUs are free" in pull.body
    assert "| waiting | 12 requests | 60 s |" in pull.body
    assert f"digest `{DIGEST}`" in pull.body
    assert site.approvals == [("alice", DIGEST)]
    assert site.target.state.rollout is not None
    assert site.target.state.rollout.suggestion.decided_by == "alice"


@pytest.mark.parametrize("name", FILES)
async def test_the_edit_is_in_place(tmp_path: Path, name: str) -> None:
    repository = Repository(tmp_path, path=name, content=FILES[name])
    options = options_of(repository, NoForge())
    requests = PullRequests(options=options, file=tmp_path / "p.json", now=lambda: NOON, minutes=list)

    await requests.update(Target(waiting(OPEN)))

    edited = repository.read("flettner/chat-s1")
    assert edited == FILES[name].replace('"4"', '"16"').replace("=4", "=16").replace("seqs 4", "seqs 16")


@pytest.mark.parametrize("by", ["mallory", "vera", ""])
async def test_a_merge_by_another_person_approves_nothing(site: Site, by: str) -> None:
    await site.update()
    site.merge(by)

    await site.update()

    assert (site.approvals, len(site.target.state.suggestions.open)) == ([], 1)


async def test_the_proposer_is_no_other_approver(site: Site) -> None:
    own = replace(OPEN, policy="alice", proposal=replace(OPEN.proposal, rule="person"))
    site.set(own, approval="other")
    await site.update()
    site.merge("alice")

    await site.update()

    assert (site.approvals, site.target.state.rollout) == ([("alice", DIGEST)], None)


async def test_a_branch_with_another_commit_approves_nothing(site: Site) -> None:
    await site.update()
    site.repository.commit(COMPOSE.replace('"4"', '"4096"'), "flettner/chat-s1")
    site.merge("alice")

    await site.update()

    assert site.approvals == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_merge_into_another_branch_approves_nothing(tmp_path: Path, kind: str) -> None:
    """Who may push can change the branch that it is for, to one that needs no review."""
    async with build_site(tmp_path, kind) as site:
        await site.update()
        site.forge.pulls[0].base = "unprotected"
        site.merge("alice")

        await site.update()

        assert site.approvals == []
        assert "it was merged into unprotected, not into main" in site.requests.tracked["chat-s1"].refused


async def test_a_merge_while_the_text_changes_approves_nothing(site: Site) -> None:
    """The person may have read the text before: nobody knows."""
    await site.update()
    site.forge.on_rewrite = lambda _: site.merge("alice")
    site.set(replace(OPEN, digest="sha256:" + "b" * 64))

    await site.update()
    await site.update()

    assert (site.approvals, len(site.target.state.suggestions.open)) == ([], 1)


async def test_the_text_follows_the_suggestion_and_a_merge_approves_what_it_showed(site: Site) -> None:
    await site.update()
    newer = replace(OPEN, digest="sha256:" + "b" * 64)
    site.set(newer)
    await site.update()
    assert newer.digest in site.forge.pulls[0].body
    site.merge("alice")
    site.set(replace(OPEN, digest="sha256:" + "c" * 64))

    await site.update()

    assert site.approvals == []


async def test_an_upgrade_takes_an_admin(site: Site) -> None:
    await site.update()
    site.set(replace(OPEN, proposal=replace(OPEN.proposal, to={"image": "vllm/vllm-openai:v0.13.0"})))
    site.merge("alice")

    await site.update()

    assert site.approvals == []


async def test_the_merge_counts_once_although_it_is_seen_again(site: Site) -> None:
    await site.update()
    site.merge("alice")

    for _ in range(3):
        await site.update()

    assert len(site.approvals) == 1


@pytest.mark.parametrize("state", [{"mode": "advise"}, {"paused": True}], ids=str)
async def test_a_merge_starts_nothing_while_nothing_may_start(site: Site, state: dict[str, Any]) -> None:
    site.set(OPEN, **state)
    await site.update()
    site.merge("alice")

    await site.update()

    assert site.target.state.rollout is None


async def test_what_argo_or_flux_applies_is_not_approved(site: Site) -> None:
    site.set(replace(OPEN, preflight=PreflightResult(owner="Argo CD")))
    await site.update()
    assert "Argo CD applies it once it is merged" in site.forge.pulls[0].body
    site.merge("alice")
    await site.update()
    site.set()  # the servers run with it now, which ends the suggestion

    await site.update()

    assert (site.approvals, site.forge.pulls[0].state) == ([], "merged")


async def test_a_suggestion_that_ends_closes_its_pull_request(site: Site) -> None:
    await site.update()
    site.set()

    await site.update()

    assert site.forge.pulls[0].state == "closed"


async def test_a_pull_request_that_a_person_closed_is_left(site: Site) -> None:
    await site.update()
    site.forge.pulls[0].state = "closed"

    await site.update()
    await site.update()

    assert (site.forge.pulls[0].state, len(site.forge.pulls)) == ("closed", 1)


@pytest.mark.smoke
async def test_a_merged_change_that_was_rolled_back_is_taken_back(site: Site) -> None:
    await site.update()
    site.merge("alice")
    await site.update()
    rollout = replace(ROLLOUT, suggestion=replace(OPEN, status="approved"), outcome="rolled_back")
    site.set(rollout=replace(rollout, why="12 of 40 failed", ended_at=NOON))

    await site.update()
    await site.update()

    _, reversal = site.forge.pulls
    assert (reversal.branch, reversal.title) == (
        "flettner/revert-chat-s1",
        "chat: take back max_num_seqs 16 → 4",
    )
    assert "12 of 40 failed" in reversal.body
    assert site.repository.read(reversal.branch) == COMPOSE


async def test_an_unmerged_change_that_was_rolled_back_is_closed(site: Site) -> None:
    await site.update()
    site.set(rollout=replace(ROLLOUT, suggestion=OPEN, outcome="rolled_back", ended_at=NOON))

    await site.update()

    assert [pull.state for pull in site.forge.pulls] == ["closed"]


async def test_a_change_in_force_that_is_not_merged_stays_open(site: Site) -> None:
    await site.update()
    site.set(rollout=replace(ROLLOUT, suggestion=OPEN, outcome="promoted", ended_at=NOON))

    await site.update()

    assert [pull.state for pull in site.forge.pulls] == ["open"]


async def test_a_restart_goes_on_with_the_same_pull_request(site: Site) -> None:
    await site.update()
    site.merge("alice")
    site.requests = PullRequests(
        options=site.requests.options, file=site.requests.file, now=lambda: NOON, minutes=list
    )

    await site.update()

    assert (site.approvals, len(site.forge.pulls)) == ([("alice", DIGEST)], 1)


async def test_without_a_forge_the_branch_is_pushed_and_nobody_approves_by_it(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    requests = PullRequests(
        options=options_of(repository, NoForge()), file=tmp_path / "p.json", now=lambda: NOON, minutes=list
    )
    target = Target(waiting(OPEN))

    await requests.update(target)
    repository.merge("flettner/chat-s1")
    await requests.update(target)

    assert (repository.branches(), target.events) == ({"main", "flettner/chat-s1"}, [])
    assert "digest `sha256:aaaa" in git(repository.bare, "log", "-1", "--format=%B", "flettner/chat-s1")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"path": "deploy/other.yaml"}, "No such file"),
        ({"branch": "nowhere"}, "git clone"),
        ({"server": "code"}, "starts 0 servers"),
        ({"path": "link"}, "out of the repository"),
    ],
    ids=str,
)
async def test_what_cannot_be_written_is_logged_and_tried_again_later(
    site: Site, capsys: pytest.CaptureFixture[str], values: dict[str, Any], why: str
) -> None:
    (site.repository.home / "work" / "link").symlink_to("/etc/passwd")
    site.repository.commit(COMPOSE + "# with a link\n")
    right, site.requests.options = site.requests.options, replace(site.requests.options, **values)

    await site.requests.update(site.target)
    await site.requests.update(site.target)
    said = capsys.readouterr().out
    site.requests.options = right
    await site.update()

    assert (said.count("pull_request.failed"), why in said, TOKEN in said) == (1, True, False)
    assert len(site.forge.pulls) == 1


def test_a_failure_is_not_repeated_for_ten_minutes() -> None:
    assert timedelta(seconds=pull_requests.TRIED_EVERY_S) == timedelta(minutes=10)
