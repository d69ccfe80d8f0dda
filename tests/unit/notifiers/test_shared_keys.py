"""Receivers that were given one key: each takes only what was signed for itself."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp.test_utils import TestClient, TestServer

from flettner.agent.api.app import build_app
from flettner.agent.api.routes.decisions import RECEIVED
from flettner.agent.api.tokens import Tokens
from flettner.agent.notify.delivery import NoticeDelivery
from flettner.agent.notify.rules import Notice, waiting_notice
from tests.support.decision_services import (
    PEOPLE,
    MailService,
    SignedCall,
    SlackService,
    TeamsService,
    deliver_by,
)
from tests.support.fake_daemon_view import NOON, FakeDaemonView

SERVICES = {"mail": MailService(), "slack": SlackService(), "teams": TeamsService()}
Service = MailService | SlackService | TeamsService


def only(service: Service, user: str, **role: Any) -> dict[str, Any]:  # noqa: ANN401 - a person of the config
    """`people` of a receiver with this user alone."""
    id_ = service.address(user) if isinstance(service, MailService) else user
    return {id_: (PEOPLE[user][0], role.get("role", PEOPLE[user][1]))}


@dataclass
class Site:
    """A daemon with the receivers `ops`, where Alice is an operator, and `owners`, with other people."""

    service: Service
    home: Path
    client: TestClient[Any, Any]
    daemon: FakeDaemonView = field(default_factory=FakeDaemonView)
    at: datetime = NOON

    def add(self, name: str, people: dict[str, Any], console: str = "https://flettner.example.org") -> None:
        notifier = replace(self.service.notifier(self.home), people=people)
        delivery = deliver_by(notifier, self.home, name)
        delivery.console = console
        self.daemon.listed_receivers = {**self.daemon.listed_receivers, name: delivery}

    def receiver(self, name: str) -> NoticeDelivery:
        return self.daemon.listed_receivers[name]

    def notice(self, by: NoticeDelivery) -> Notice:
        state = self.daemon.targets()["chat"].state
        (suggestion,) = [each for each in self.daemon.suggestions() if each.status == "open"]
        return by.finalize(waiting_notice(state, suggestion, NOON))

    def press(self, verb: str, by: str = "ops", user: str = "U0ALICE") -> SignedCall:
        return self.service.call(verb, self.notice(self.receiver(by)), user=user, at=self.at)

    async def send(self, call: SignedCall, to: str) -> int:
        async with self.client.post(f"/v1/decisions/{to}", data=call[1], headers=call[0]) as answer:
            await answer.read()
            return answer.status

    @property
    def status(self) -> str:
        return self.daemon.suggestions()[0].status

    @property
    def audited(self) -> str:
        return str(self.daemon.attempts)


@pytest.fixture(params=list(SERVICES.values()), ids=list(SERVICES))
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    daemon = FakeDaemonView()
    app = build_app(daemon, Tokens(None, daemon.now))
    async with TestClient(TestServer(app)) as client:
        site = Site(service=request.param, home=tmp_path, client=client, daemon=daemon)
        site.add("ops", only(request.param, "U0ALICE"))
        app[RECEIVED].now = lambda: site.at
        yield site


mails_only = pytest.mark.parametrize("site", [SERVICES["mail"]], ids=["mail"], indirect=True)
slack_only = pytest.mark.parametrize("site", [SERVICES["slack"]], ids=["slack"], indirect=True)


@mails_only
@pytest.mark.parametrize("verb", ["approve", "deny"])
async def test_a_button_for_one_receiver_is_refused_by_another_where_the_person_is_an_admin(
    site: Site, verb: str
) -> None:
    site.add("owners", only(site.service, "U0ALICE", role="admin"))
    site.daemon.suggest({"image": "vllm/vllm-openai:v0.12.0"})

    assert await site.send(site.press(verb), to="owners") == 401
    assert site.status == "open"
    assert "a decision by owners: the link is not one that flettner signed for this receiver" in site.audited


@mails_only
async def test_a_link_opens_no_page_of_another_receiver(site: Site) -> None:
    site.add("owners", only(site.service, "U0ALICE", role="admin"))
    made = site.daemon.suggest({"max_num_seqs": 128})
    assert isinstance(site.service, MailService)
    link = quote(site.service.link("show", site.notice(site.receiver("ops")), at=site.at))

    async with site.client.get(f"/v1/decisions/owners?link={link}") as refused:
        assert (refused.status, made.digest in await refused.text()) == (401, False)
    async with site.client.get(f"/v1/decisions/ops?link={link}") as shown:
        assert (shown.status, made.digest in await shown.text()) == (200, True)


@mails_only
async def test_the_link_of_one_receiver_is_nobody_elses_at_its_own(site: Site) -> None:
    """Neither a person whom only the other receiver names, nor one who writes another name into a link."""
    site.add("owners", only(site.service, "U0BOB", role="admin"))
    site.daemon.suggest({"max_num_seqs": 128})
    headers, body = site.press("approve")

    by_bob = await site.send(site.press("approve", user="U0BOB"), to="ops")
    renamed = await site.send((headers, body.replace(b"U0ALICE", b"U0BOB")), to="owners")

    assert (by_bob, renamed, site.status) == (200, 401, "open")
    assert "mail to U0BOB@example.org, without a role" in site.audited


@mails_only
async def test_a_button_is_used_up_and_ends_for_its_own_receiver_only(site: Site) -> None:
    site.add("owners", site.receiver("ops").notifier.people)  # type: ignore[attr-defined]
    site.daemon.suggest({"max_num_seqs": 128})
    sent = {name: site.press("approve", by=name) for name in ("ops", "owners")}
    late = site.press("deny", by="owners")

    first, again = [await site.send(sent["ops"], to="ops") for _ in range(2)]
    replayed = await site.send(sent["ops"], to="owners")
    second = await site.send(sent["owners"], to="owners")
    site.at += timedelta(hours=25)

    assert (first, again, replayed, second) == (200, 409, 401, 200)
    assert await site.send(late, to="owners") == 401
    assert (site.status, site.daemon.suggestions()[0].decided_by) == ("approved", "operator alice")


@pytest.mark.parametrize("site", [SERVICES["mail"], SERVICES["slack"]], ids=["mail", "slack"], indirect=True)
@pytest.mark.parametrize("verb", ["approve", "deny"])
async def test_what_another_daemon_signed_with_the_key_is_refused(site: Site, verb: str) -> None:
    """A fleet has one config; each daemon has its own address, and suggestions of the same names."""
    site.daemon.suggest({"max_num_seqs": 128})
    here = site.receiver("ops")
    site.add("ops", only(site.service, "U0ALICE"), console="https://gpu8.example.org")
    pressed = site.press(verb)
    site.daemon.listed_receivers = {"ops": here}

    assert (await site.send(pressed, to="ops"), site.status) == (401, "open")


@slack_only
async def test_a_button_is_judged_by_the_receiver_that_sent_it(site: Site) -> None:
    """A Slack app has one address for the buttons of all its channels, here that of `ops`."""
    site.add("owners", only(site.service, "U0BOB"))
    site.daemon.suggest({"max_num_seqs": 128})

    by_alice = await site.send(site.press("approve", by="owners", user="U0ALICE"), to="ops")
    between = site.status
    by_bob = await site.send(site.press("approve", by="owners", user="U0BOB"), to="ops")

    assert (by_alice, between, by_bob) == (200, "open", 200)
    assert (site.status, site.daemon.suggestions()[0].decided_by) == ("approved", "operator bob")


@slack_only
async def test_a_button_of_a_receiver_that_is_gone_or_has_another_key_is_refused(site: Site) -> None:
    site.daemon.suggest({"max_num_seqs": 128})
    site.add("gone", only(site.service, "U0ALICE"))
    of_gone = site.press("approve", by="gone")
    del site.daemon.listed_receivers["gone"]  # type: ignore[attr-defined]
    site.add("owners", only(site.service, "U0ALICE"))
    of_owners = site.press("approve", by="owners")
    (site.home / "owners.secret").write_text("another key")
    owners: Any = site.receiver("owners")
    owners.notifier = replace(owners.notifier, signing_secret_file=str(site.home / "owners.secret"))

    assert [await site.send(call, to="ops") for call in (of_gone, of_owners)] == [401, 401]
    assert site.status == "open"


@pytest.mark.parametrize(
    "site", [SERVICES["slack"], SERVICES["teams"]], ids=["slack", "teams"], indirect=True
)
async def test_a_request_to_one_receiver_is_not_repeated_to_another(site: Site) -> None:
    site.add("owners", only(site.service, "U0ALICE", role="admin"))
    site.daemon.suggest({"image": "vllm/vllm-openai:v0.12.0"})
    call = site.press("approve")

    assert [await site.send(call, to=name) for name in ("ops", "owners")] == [200, 409]
    assert site.status == "open"
