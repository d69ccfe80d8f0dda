"""Mails over real SMTP, and the page on which a person decides."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from flettner.agent.api.app import build_app
from flettner.agent.api.routes.decisions import RECEIVED
from flettner.agent.api.tokens import Tokens
from flettner.agent.domain.errors import NoticeError
from flettner.agent.domain.suggestion import Suggestions
from flettner.agent.notify.mail import send_mail
from flettner.agent.notify.rules import waiting_notice
from flettner.notifiers.mail import Mail
from tests.support.decision_services import MailService, deliver_by
from tests.support.fake_daemon_view import NOON, FakeDaemonView
from tests.support.mail_server import HOST, LOGIN, MailServer, mail_server

SERVICE = MailService()


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MailServer]:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "mail.crt"))
    async with mail_server(tmp_path) as server:
        yield server


@pytest.fixture
def mail(tmp_path: Path, server: MailServer) -> Mail:
    (tmp_path / "password").write_text(LOGIN[1])
    return SERVICE.notifier(
        tmp_path,
        HOST,
        port=server.port,
        tls="starttls",
        user=LOGIN[0],
        password_file=str(tmp_path / "password"),
        to=("ops@example.org",),
    )


class Site:
    """A daemon with a suggestion, whose receiver sends mails."""

    def __init__(self, mail: Mail, home: Path) -> None:
        self.daemon, self.at = FakeDaemonView(), NOON
        self.delivery = deliver_by(mail, home, "mail to ops")
        self.daemon.listed_receivers = {self.delivery.name: self.delivery}
        self.made = self.daemon.suggest({"max_num_seqs": 128})
        self.accepted: set[str] = set()
        self.app = build_app(self.daemon, Tokens(None, self.daemon.now))
        self.app[RECEIVED].now = lambda: self.at
        self.client: TestClient[Any, Any] = TestClient(TestServer(self.app))

    @property
    def status(self) -> str:
        return next(each for each in self.daemon.suggestions() if each.id == self.made.id).status

    async def send(self) -> None:
        state = self.daemon.targets()["chat"].state
        async with self.delivery._session() as session:
            notice = self.delivery.finalize(waiting_notice(state, self.made, NOON))
            await self.delivery._send_once(session, notice, self.accepted)

    async def open(self, link: str, **headers: str) -> ClientResponse:
        parts = urlsplit(link)
        async with self.client.get(f"{parts.path}?{parts.query}", headers=headers) as answer:
            await answer.read()
            return answer

    async def press(self, page: str, verb: str) -> tuple[int, str]:
        """As a browser sends the form of the page: to its own address, from its own origin."""
        (value,) = re.findall(rf'name="link" value="({verb} [^"]+)"', page)
        origin = str(self.client.make_url("")).rstrip("/")
        headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
        path = f"/v1/decisions/{quote(self.delivery.name)}"
        async with self.client.post(path, data={"link": value}, headers=headers) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def site(mail: Mail, tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(mail, tmp_path)
    async with site.client:
        yield site


def link_of(server: MailServer, user: str = "U0ALICE") -> str:
    (mail,) = [mail for mail in server.mails if mail["To"] == SERVICE.address(user)]
    (link,) = re.findall(r"https://\S+\?link=\S+", mail.get_content())
    return str(link)


async def test_each_person_gets_a_link_of_their_own_and_others_none(site: Site, server: MailServer) -> None:
    await site.send()

    links = {mail["To"]: re.findall(r"link=\S+", mail.get_content()) for mail in server.mails}
    assert {to: len(found) for to, found in links.items()} == {
        "ops@example.org": 0,
        "U0ALICE@example.org": 1,
        "U0BOB@example.org": 1,
        "U0ADA@example.org": 1,
        "U0VERA@example.org": 0,
    }
    assert len({link for found in links.values() for link in found}) == 3
    assert server.logins == [LOGIN]
    assert server.plain == ["EHLO", "STARTTLS"]
    assert "PLANTED" not in str(server.mails)


async def test_a_mail_is_plain_text_with_one_subject_line(site: Site, server: MailServer) -> None:
    site.made = replace(
        site.made,
        proposal=replace(site.made.proposal, why="<b>it\r\nBcc: eve@example.org", to={"max_num_seqs": 96}),
    )
    await site.send()

    mail = server.mails[0]
    assert (mail.get_content_type(), mail["Bcc"], mail["Auto-Submitted"]) == (
        "text/plain",
        None,
        "auto-generated",
    )
    assert mail["Subject"].startswith("[flettner] chat: max_num_seqs")
    assert len({mail["Message-ID"] for mail in server.mails}) == len(server.mails)


async def test_a_person_approves_by_link_and_confirmation(site: Site, server: MailServer) -> None:
    await site.send()
    link = link_of(server)

    page = await site.open(link, **{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})
    text = await page.text()
    between = site.status
    status, outcome = await site.press(text, "approve")

    assert urlsplit(link).path == "/v1/decisions/mail%20to%20ops"
    assert (page.status, site.made.digest in text, "as operator alice" in text) == (200, True, True)
    assert (between, status, site.status) == ("open", 200, "approved")
    assert "was approved by operator alice" in outcome


async def test_the_page_has_a_form_for_its_own_origin_only(site: Site, server: MailServer) -> None:
    await site.send()

    page = await site.open(link_of(server))

    assert "form-action 'self'" in page.headers["Content-Security-Policy"]
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert page.headers["Referrer-Policy"] == "same-origin"
    assert (page.headers["X-Frame-Options"], page.headers["Cache-Control"]) == ("DENY", "no-store")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_a_scanner_that_follows_links_decides_nothing_and_uses_up_nothing(
    site: Site, server: MailServer, method: str
) -> None:
    await site.send()
    parts = urlsplit(link_of(server))
    for _ in range(5):
        async with site.client.request(method, f"{parts.path}?{parts.query}") as answer:
            await answer.read()

    assert site.status == "open"
    assert (await site.press(await (await site.open(parts.geturl())).text(), "deny"))[0] == 200
    assert site.status == "denied"


async def test_the_link_itself_cannot_be_sent_as_a_decision(site: Site, server: MailServer) -> None:
    await site.send()
    parts = urlsplit(link_of(server))

    async with site.client.post(parts.path, data={"link": parse_qs(parts.query)["link"][0]}) as answer:
        assert answer.status == 401
    assert site.status == "open"


@pytest.mark.parametrize("verb", ["approve", "deny"])
async def test_a_link_counts_once(site: Site, server: MailServer, verb: str) -> None:
    await site.send()
    text = await (await site.open(link_of(server))).text()
    first, _ = await site.press(text, "approve")

    second, page = await site.press(text, verb)

    assert (first, second, site.status) == (200, 409, "approved")
    assert "<h1>Not decided</h1>" in page


async def test_a_button_can_be_pressed_again_after_a_refusal(site: Site, server: MailServer) -> None:
    await site.send()
    text = await (await site.open(link_of(server))).text()
    state = site.daemon.targets()["chat"].state
    site.daemon.set(replace(state, paused=True))
    _, refused = await site.press(text, "approve")
    site.daemon.set(replace(state, paused=False))

    await site.press(text, "approve")

    assert "paused" in refused
    assert site.status == "approved"


async def test_a_late_link_shows_nothing(site: Site, server: MailServer) -> None:
    await site.send()
    site.at += timedelta(hours=24, seconds=1)

    page = await site.open(link_of(server))

    assert (page.status, site.made.digest in await page.text()) == (401, False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("U0ALICE", "U0ADA"),
        ("chat-s1", "chat-s2"),
        ("show", "approve"),
        ("17", "18"),
        ("sha256:", "sha256:0"),
    ],
)
async def test_an_altered_link_is_refused(site: Site, server: MailServer, old: str, new: str) -> None:
    await site.send()
    parts = urlsplit(link_of(server))
    (link,) = parse_qs(parts.query)["link"]

    page = await site.open(f"{parts.path}?link={quote(link.replace(old, new, 1))}")
    async with site.client.post(parts.path, data={"link": link.replace("show", "approve")}) as pressed:
        assert pressed.status == 401

    assert (page.status, site.status) == (401, "open")
    assert site.daemon.attempts


async def test_a_person_who_was_removed_decides_nothing(site: Site, server: MailServer, mail: Mail) -> None:
    await site.send()
    text = await (await site.open(link_of(server))).text()
    left = {id_: person for id_, person in mail.people.items() if not id_.startswith("U0ALICE")}
    site.delivery.notifier = replace(mail, people=left)

    status, page = await site.press(text, "approve")

    assert (status, site.status) == (200, "open")
    assert "may not decide here" in page
    assert "may not decide here" in await (await site.open(link_of(server))).text()


async def test_a_superseded_suggestion_is_not_approved(site: Site, server: MailServer) -> None:
    await site.send()
    text = await (await site.open(link_of(server))).text()
    site.daemon.suggest({"max_num_seqs": 96})

    _, page = await site.press(text, "approve")

    assert site.status == "superseded"
    assert "<form" not in page
    assert "was superseded" in await (await site.open(link_of(server))).text()


async def test_a_changed_suggestion_is_shown_again_before_it_is_approved(
    site: Site, server: MailServer
) -> None:
    await site.send()
    before = await (await site.open(link_of(server))).text()
    fresh = replace(site.made, digest="sha256:" + "5" * 64, refreshed_at=NOON, changed="another plan")
    state = site.daemon.targets()["chat"].state
    site.daemon.set(replace(state, suggestions=Suggestions(open=(fresh,))))

    _, page = await site.press(before, "approve")
    between = site.status
    status, _ = await site.press(page, "approve")

    assert (between, status, site.status) == ("open", 200, "approved")
    assert "It has changed since the mail was sent" in page
    assert fresh.digest in page


async def test_a_form_of_another_site_is_refused(site: Site, server: MailServer) -> None:
    await site.send()
    text = await (await site.open(link_of(server))).text()
    (value,) = re.findall(r'name="link" value="(approve [^"]+)"', text)
    path = urlsplit(link_of(server)).path

    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        async with site.client.post(path, data={"link": value}, headers=headers) as answer:
            assert answer.status == 403
    assert site.status == "open"


@pytest.mark.parametrize(
    ("refuses", "why", "passes"),
    [
        ({"AUTH": "535 5.7.8 no PLANTED"}, "refused the login", False),
        ({"EHLO": "421 busy", "HELO": "421 busy"}, "421", True),
        ({"ops@example.org": "550 unknown"}, "refused 1 of the messages", False),
        ({"ops@example.org": "451 greylisted"}, "refused 1 of the messages", True),
        ({"DATA": "554 no PLANTED"}, "refused 5 of the messages", False),
        ({"MAIL": "452 full"}, "452", True),
        ({"STARTTLS": "454 not now"}, "454", True),
    ],
)
async def test_what_the_server_refuses_is_said_without_secrets(
    site: Site, server: MailServer, refuses: dict[str, str], why: str, passes: bool
) -> None:
    server.refuses = refuses

    with pytest.raises(NoticeError, match=why) as caught:
        await site.send()

    assert caught.value.passes == passes
    assert "PLANTED" not in str(caught.value)


async def test_the_other_addresses_get_their_mail(site: Site, server: MailServer) -> None:
    server.refuses = {"ops@example.org": "550 unknown"}

    with pytest.raises(NoticeError):
        await site.send()

    assert [mail["To"] for mail in server.mails] == [
        SERVICE.address(user) for user in ("U0ALICE", "U0BOB", "U0VERA", "U0ADA")
    ]


async def test_a_second_try_sends_nothing_twice(site: Site, server: MailServer) -> None:
    server.refuses = {"ops@example.org": "451 greylisted"}
    with pytest.raises(NoticeError):
        await site.send()
    server.refuses = {}

    await site.send()

    assert sorted(mail["To"] for mail in server.mails) == sorted(
        ["ops@example.org", *(SERVICE.address(user) for user in ("U0ALICE", "U0BOB", "U0VERA", "U0ADA"))]
    )


async def test_a_password_that_smtp_does_not_take_is_named_and_ends_no_delivery(
    site: Site, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("PLÄNTED")

    with pytest.raises(NoticeError, match="password: has characters beyond ASCII") as caught:
        site.delivery.check()

    assert "PLÄNTED" not in str(caught.value)


async def test_nothing_is_sent_without_a_trusted_certificate(
    site: Site, server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    monkeypatch.setenv("SSL_CERT_DIR", "/nonexistent")

    with pytest.raises(NoticeError, match="certificate"):
        await site.send()

    assert (server.mails, server.logins, server.plain) == ([], [], ["EHLO", "STARTTLS"])


async def test_nothing_is_sent_to_a_server_without_tls(site: Site, server: MailServer) -> None:
    server.offers = ("AUTH PLAIN",)

    with pytest.raises(NoticeError, match="STARTTLS"):
        await site.send()

    assert (server.mails, server.logins, server.plain) == ([], [], ["EHLO"])


async def test_a_server_that_hangs_is_given_up(site: Site, server: MailServer, mail: Mail) -> None:
    server.hangs = True
    post = mail.post(waiting_notice(site.daemon.targets()["chat"].state, site.made, NOON), NOON)

    with pytest.raises(NoticeError, match="cannot be reached"):
        await asyncio.to_thread(send_mail, post, 0.2, set())


async def test_mail_goes_over_tls_from_the_first_byte_too(
    site: Site, mail: Mail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "mail.crt"))
    async with mail_server(tmp_path, wraps=True) as server:
        site.delivery.notifier = replace(mail, tls="tls", port=server.port)
        await site.send()

    assert (len(server.mails), server.logins, server.plain) == (5, [LOGIN], [])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"to": ("ops",)}, "no mail address"),
        ({"sender": "a@b\r\nBcc: c@d"}, "no mail address"),
        ({"people": {}, "link_key_file": ""}, "nobody would get a mail"),
        ({"link_key_file": ""}, "need each other"),
        ({"user": "u"}, "need each other"),
        ({"server": "smtp.example.org"}, "on this host only"),
        ({"people": {"a@example.org": ("", "admin")}}, "the name"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SERVICE.notifier(tmp_path, **options)


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    mail = SERVICE.notifier(tmp_path)
    (tmp_path / "link.key").write_text("short")
    daemon = FakeDaemonView()
    notice = waiting_notice(daemon.targets()["chat"].state, daemon.suggest({"max_num_seqs": 128}), NOON)

    with pytest.raises(NoticeError, match="openssl rand"):
        mail.post(notice, NOON)
