"""Every service that sends decisions: genuine ones count, forged, late and repeated ones do not."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from flettner.agent.api.app import build_app
from flettner.agent.api.rate_limits import BURST, RateLimits
from flettner.agent.api.routes.decisions import RECEIVED
from flettner.agent.api.tokens import Tokens
from flettner.agent.domain.state import Phase
from flettner.agent.domain.suggestion import Suggestion, Suggestions
from flettner.agent.machine.guard import PERSON
from flettner.agent.notify.rules import Notice, waiting_notice
from tests.support.decision_services import (
    DecisionService,
    MailService,
    SignedCall,
    SlackService,
    TeamsService,
    deliver_by,
)
from tests.support.fake_daemon_view import NOON, FakeDaemonView

SERVICES: dict[str, DecisionService] = {
    "slack": SlackService(),
    "teams": TeamsService(),
    "mail": MailService(),
}


@dataclass
class Site:
    """The API of a daemon with one receiver, `ops`."""

    client: TestClient[Any, Any]
    service: DecisionService
    daemon: FakeDaemonView = field(default_factory=FakeDaemonView)
    at: datetime = NOON

    async def receive(self, call: SignedCall, receiver: str = "ops") -> tuple[int, str]:
        headers, body = call
        async with self.client.post(f"/v1/decisions/{receiver}", data=body, headers=headers) as response:
            return response.status, await response.text()

    def notice(self, suggestion: Suggestion) -> Notice:
        notice = waiting_notice(self.daemon.targets()["chat"].state, suggestion, self.at)
        return self.daemon.receivers()["ops"].finalize(notice)

    def suggestion(self, name: str = "chat-s1") -> Suggestion:
        return next(each for each in self.daemon.suggestions() if each.id == name)

    def set(self, **values: object) -> None:
        state: Any = self.daemon.targets()["chat"].state
        self.daemon.set(replace(state, **values))

    def refresh(self, suggestion: Suggestion) -> Suggestion:
        fresh = replace(suggestion, digest="sha256:" + "5" * 64, refreshed_at=NOON, changed="another plan")
        self.set(suggestions=Suggestions(open=(fresh,)))
        return fresh


@pytest.fixture(params=list(SERVICES.values()), ids=list(SERVICES))
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    daemon = FakeDaemonView()
    daemon.listed_receivers = {"ops": deliver_by(request.param.notifier(tmp_path), tmp_path)}
    limits = RateLimits(now=lambda: 0.0)  # however slow the machine is, no request is paid back
    app = build_app(daemon, Tokens(None, daemon.now), limits=limits)
    async with TestClient(TestServer(app)) as client:
        site = Site(client=client, service=request.param, daemon=daemon)
        app[RECEIVED].now = lambda: site.at
        yield site


async def test_an_approval_starts_the_rollout_in_the_name_of_the_person(site: Site) -> None:
    made = site.daemon.suggest({"max_num_seqs": 128})

    status, _ = await site.receive(site.service.call("approve", site.notice(made)))

    assert status == 200
    assert (site.suggestion().status, site.suggestion().decided_by) == ("approved", "operator alice")
    assert site.daemon.targets()["chat"].state.phase is Phase.LAUNCHING


async def test_a_denial_ends_the_suggestion(site: Site) -> None:
    made = site.daemon.suggest({"max_num_seqs": 128})

    status, _ = await site.receive(site.service.call("deny", site.notice(made)))

    assert (status, site.suggestion().status, site.suggestion().decided_by) == (
        200,
        "denied",
        "operator alice",
    )


async def test_a_request_with_another_key_is_refused_and_audited(site: Site) -> None:
    made = site.daemon.suggest({"max_num_seqs": 128})

    status, _ = await site.receive(site.service.call("approve", site.notice(made), key="b3BlbiBzZXNhbWU="))

    assert (status, site.suggestion().status) == (401, "open")
    assert ["a decision by ops" in kind for (kind,) in map(tuple, site.daemon.attempts)] == [True]


async def test_an_altered_request_is_refused(site: Site) -> None:
    made = site.daemon.suggest({"max_num_seqs": 128})
    headers, body = site.service.call("deny", site.notice(made))

    status, _ = await site.receive((headers, body.replace(b"deny", b"approve")))

    assert (status, site.suggestion().status) == (401, "open")


@pytest.mark.parametrize("late", [timedelta(days=3), timedelta(minutes=-6)], ids=["late", "early"])
async def test_a_late_or_early_request_is_refused(site: Site, late: timedelta) -> None:
    made = site.daemon.suggest({"max_num_seqs": 128})
    call = site.service.call("approve", site.notice(made))
    site.at += late

    status, _ = await site.receive(call)

    assert (status, site.suggestion().status) == (401, "open")


async def test_a_repeated_request_is_refused(site: Site) -> None:
    made = site.daemon.suggest({"max_num_seqs": 128})
    call = site.service.call("approve", site.notice(made))
    site.set(paused=True)
    first, _ = await site.receive(call)
    site.set(paused=False)

    second, _ = await site.receive(call)

    # A button of a mail is the person's own, who may press it again as long as nothing is decided.
    then = (200, "approved") if isinstance(site.service, MailService) else (409, "open")
    assert (first, second, site.suggestion().status) == (200, *then)


async def test_a_decision_counts_once(site: Site) -> None:
    made = site.daemon.suggest({"max_num_seqs": 128})
    call = site.service.call("deny", site.notice(made))

    assert [(await site.receive(call))[0] for _ in range(2)] == [200, 409]
    assert site.suggestion().status == "denied"


async def test_forged_requests_from_one_address_do_not_lock_out_genuine_ones(site: Site) -> None:
    made = site.daemon.suggest({"max_num_seqs": 128})
    forged = site.service.call("approve", site.notice(made), key="b3BlbiBzZXNhbWU=")

    statuses = Counter([(await site.receive(forged))[0] for _ in range(int(BURST) + 1)])
    genuine, _ = await site.receive(site.service.call("approve", site.notice(made)))

    assert statuses[429]
    assert (genuine, site.suggestion().status) == (200, "approved")


@pytest.mark.parametrize("user", ["U0MALLORY", "U0VERA"], ids=["unknown", "viewer"])
async def test_a_person_without_the_role_decides_nothing(site: Site, user: str) -> None:
    made = site.daemon.suggest({"max_num_seqs": 128})

    for verb in ("approve", "deny"):
        await site.receive(site.service.call(verb, site.notice(made), user=user))

    assert site.suggestion().status == "open"
    assert site.daemon.attempts


async def test_a_superseded_suggestion_is_not_approved(site: Site) -> None:
    made = site.daemon.suggest({"max_num_seqs": 128})
    site.daemon.suggest({"max_num_seqs": 96})

    status, _ = await site.receive(site.service.call("approve", site.notice(made)))

    assert (status, site.suggestion().status, site.suggestion("chat-s2").status) == (
        200,
        "superseded",
        "open",
    )


async def test_an_expired_suggestion_is_not_approved(site: Site) -> None:
    made = site.daemon.suggest({"max_num_seqs": 128})
    site.daemon.at += timedelta(hours=2)

    await site.receive(site.service.call("approve", site.notice(made)))

    assert site.suggestion().status == "open"


async def test_a_changed_suggestion_is_approved_after_another_look_only(site: Site) -> None:
    made = site.daemon.suggest({"max_num_seqs": 128})
    seen, fresh = site.notice(made), site.refresh(made)

    first, _ = await site.receive(site.service.call("approve", seen))
    between = site.suggestion().status
    second, _ = await site.receive(site.service.call("approve", site.notice(fresh)))

    assert (first, between, second, site.suggestion().status) == (200, "open", 200, "approved")


async def test_the_proposer_is_no_other_approver(site: Site) -> None:
    site.set(approval="other")
    made = site.daemon.suggest({"max_num_seqs": 128}, policy="operator alice", rule=PERSON)

    await site.receive(site.service.call("approve", site.notice(made)))
    own = site.suggestion().status
    await site.receive(site.service.call("approve", site.notice(made), user="U0BOB"))

    assert (own, site.suggestion().status, site.suggestion().decided_by) == (
        "open",
        "approved",
        "operator bob",
    )


async def test_only_an_admin_approves_an_upgrade(site: Site) -> None:
    made = site.daemon.suggest({"image": "vllm/vllm-openai:v0.12.0"})

    await site.receive(site.service.call("approve", site.notice(made)))
    by_operator = site.suggestion().status
    await site.receive(site.service.call("approve", site.notice(made), user="U0ADA"))

    assert (by_operator, site.suggestion().status) == ("open", "approved")


async def test_a_receiver_of_another_name_takes_nothing(site: Site) -> None:
    made = site.daemon.suggest({"max_num_seqs": 128})

    status, text = await site.receive(site.service.call("approve", site.notice(made)), receiver="other")

    assert (status, site.suggestion().status) == (401, "open")
    assert "other" not in text


@pytest.mark.parametrize("body", [b"", b"payload=", b"payload=%7B%7D", b"\xff\xfe", b"{}", b"[" * 50_000])
async def test_garbage_is_refused(site: Site, body: bytes) -> None:
    headers, _ = site.service.call("approve", site.notice(site.daemon.suggest({"max_num_seqs": 128})))

    assert (await site.receive((headers, body)))[0] == 401


@pytest.mark.parametrize("name", ["X-Slack-Request-Timestamp", "X-Slack-Signature", "Authorization"])
async def test_a_header_of_bytes_that_are_no_text_is_refused(site: Site, name: str) -> None:
    """aiohttp passes them on as lone surrogates, which cannot be encoded."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.client.port)
    writer.write(b"POST /v1/decisions/ops HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")
    writer.write(f"Content-Length: 0\r\n{name}: v0=".encode() + b"\xff\r\n\r\n")

    answer = await reader.read()
    writer.close()

    assert answer.startswith(b"HTTP/1.1 401 "), answer
