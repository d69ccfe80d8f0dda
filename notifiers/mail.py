"""People's mailboxes, by an SMTP server with TLS; a signed link leads to a page where a person can decide.

Opening the link decides nothing, since programs that scan mails open links: the page asks for a confirmation.
"""

import hashlib
import hmac
import re
import socket
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from html import escape
from typing import Final, Literal
from urllib.parse import parse_qs, urlencode

from flettner.agent.api.decision_sources import (
    DecisionAnswer,
    DecisionReply,
    ForgedDecisionError,
    ReceivedDecision,
    SignedRequest,
)
from flettner.agent.api.html_pages import FORM_HEADERS, render_page
from flettner.agent.api.people import People, check_people, find_person
from flettner.agent.domain.errors import NoticeError
from flettner.agent.notify.rules import MailSecurity, Notice, OutgoingMail
from flettner.notifiers.shared.secret_files import read_secret

LINK_LASTS: Final = timedelta(hours=24)
EARLY: Final = timedelta(minutes=5)  # by which a clock may have been set back
SHORTEST_KEY: Final = 32  # characters
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,255}")
Verb = Literal["approve", "deny", "show"]
_VERBS: Final[dict[str, Verb]] = {"approve": "approve", "deny": "deny", "show": "show"}
_BUTTONS: Final[tuple[Verb, Verb]] = ("approve", "deny")
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """Signed for one receiver, this person and this version of a suggestion; the time is that of the mail.

    A mail has one to `show` it; the page's buttons have the others. `decisions`: the receiver's address, to
    which the link leads. It is signed and not repeated.
    """

    verb: Verb
    address: str
    suggestion: str
    digest: str
    sent_s: int  # Unix time

    def sign(self, key: bytes, decisions: str) -> str:
        signed = f"{self.verb} {self.address} {self.suggestion} {self.digest} {self.sent_s}"
        return f"{signed} {_mac(key, decisions, signed)}"

    @classmethod
    def read(cls, text: str, key: bytes, decisions: str) -> "_Link":
        """Raises ForgedDecisionError."""
        signed, _, mac = text.rpartition(" ")
        if not hmac.compare_digest(_mac(key, decisions, signed).encode(), mac.encode()):
            raise ForgedDecisionError("the link is not one that flettner signed for this receiver")
        verb, address, suggestion, digest, sent_s = signed.split(" ")
        return cls(
            verb=_VERBS[verb], address=address, suggestion=suggestion, digest=digest, sent_s=int(sent_s)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    server: str  # the SMTP server's name
    sender: str  # the address from which mails come
    to: tuple[str, ...] = ()  # addresses that get every message, without a link to decide
    port: int = 587  # of the server
    tls: MailSecurity = "starttls"  # "tls" for port 465; "none" only for a server on this host
    user: str = ""  # who signs in to the server; empty: nobody
    password_file: str = ""  # of the user
    people: People = field(default_factory=dict)  # by address: who decide by a link, their names and roles
    link_key_file: str = ""  # signs the links of `people`: 32 characters at least

    def __post_init__(self) -> None:
        check_people(self.people)
        for address in (self.sender, *self.to, *self.people):
            if not _ADDRESS.fullmatch(address):
                raise ValueError(f"{address[:100]!r} is no mail address like ops@example.org")
        if not self.to and not self.people:
            raise ValueError("to and people are empty: nobody would get a mail")
        if bool(self.link_key_file) != bool(self.people):
            raise ValueError("link_key_file and people need each other: what signs links, and who may decide")
        if bool(self.user) != bool(self.password_file):
            raise ValueError("user and password_file need each other")
        if not self.user.isascii():
            raise ValueError("user has characters beyond ASCII, which the login of SMTP does not take here")
        if self.tls == "none" and self.server not in _LOOPBACK:
            raise ValueError(
                'tls = "none" is for a server on this host only: links and passwords are secrets'
            )

    @property
    def takes_decisions(self) -> bool:
        return bool(self.people)

    @property
    def needs_public_url(self) -> bool:
        """Links lead there."""
        return self.takes_decisions

    def post(self, notice: Notice, at: datetime) -> OutgoingMail:
        key = self._key() if self.people else b""
        asks = notice.digest and notice.link
        messages = [self._write(notice, address, at) for address in self.to]
        for address, (name, role) in self.people.items():
            link = ""
            if asks and role != "viewer":
                to = _Link(
                    verb="show",
                    address=address,
                    suggestion=notice.suggestion,
                    digest=notice.digest,
                    sent_s=int(at.timestamp()),
                )
                link = f"{notice.decisions}?{urlencode({'link': to.sign(key, notice.decisions)})}"
            messages.append(self._write(notice, address, at, name, link))
        return OutgoingMail(
            host=self.server,
            port=self.port,
            security=self.tls,
            login=(self.user, self._password()) if self.user else None,
            messages=tuple(messages),
        )

    def read_link(self, link: str, at: datetime, decisions: str) -> ReceivedDecision:
        return self._read(link, at, decisions, is_press=False)

    def read_decision(self, request: SignedRequest) -> ReceivedDecision:
        try:
            (link,) = parse_qs(request.body.decode(), strict_parsing=True)["link"]
        except (ValueError, KeyError) as error:
            raise ForgedDecisionError("it is not the form of flettner's page") from error
        return self._read(link, request.at, request.decisions, is_press=True)

    def answer(self, decision: ReceivedDecision, reply: DecisionReply) -> DecisionAnswer:
        """A page: the suggestion as it is now with the form for it, or how it ended."""
        notice = reply.notice
        if notice is None or not notice.digest:
            return DecisionAnswer(body=render_page(reply.text).encode(), media="text/html")
        key = self._key()
        seen = _Link.read(decision.link, key, notice.decisions)
        changed = notice.digest != seen.digest
        now = replace(seen, suggestion=notice.suggestion, digest=notice.digest)
        buttons = (replace(now, verb=verb).sign(key, notice.decisions) for verb in _BUTTONS)
        page = render_page(
            notice.title,
            "It has changed since the mail was sent; this is the present version." if changed else "",
            notice.text,
            f"Digest: {notice.digest}",
            f"You decide as {decision.person.principal if decision.person else 'nobody'}.",
            form=_form(*buttons),
        )
        return DecisionAnswer(body=page.encode(), media="text/html", headers=FORM_HEADERS)

    def _read(self, text: str, at: datetime, decisions: str, *, is_press: bool) -> ReceivedDecision:
        key = self._key()
        link = _Link.read(text, key, decisions)
        if (link.verb == "show") == is_press:
            raise ForgedDecisionError("the link of a mail decides nothing, and a button's shows nothing")
        if not -EARLY <= at - datetime.fromtimestamp(link.sent_s, UTC) <= LINK_LASTS:
            raise ForgedDecisionError("the link is older than 24 hours, or the clock is wrong")
        return ReceivedDecision(
            id=f"link {replace(link, verb='show').sign(key, decisions)}" if is_press else "",
            verb=link.verb,
            suggestion=link.suggestion,
            digest=link.digest,
            sender=f"mail to {link.address}",
            person=find_person(self.people, link.address),
            link=text,
        )

    def _write(
        self, notice: Notice, address: str, at: datetime, name: str = "", link: str = ""
    ) -> EmailMessage:
        """Plain text: a server's text makes no link and no image."""
        host = socket.gethostname()
        message = EmailMessage()
        message["From"], message["To"], message["Date"] = self.sender, address, format_datetime(at)
        message["Subject"] = f"[flettner] {notice.title}"
        message["Message-ID"] = _identify(f"{notice.id} {notice.at.isoformat()} {address}", self.sender)
        if notice.key:
            message["References"] = _identify(f"{notice.key} {address}", self.sender)
        message["Auto-Submitted"] = "auto-generated"
        lines = [notice.title, notice.text]
        if link:
            lines += [f"Approve or deny as {name}, by {at + LINK_LASTS:%Y-%m-%d %H:%M} UTC:\n{link}"]
            lines += ["The link is yours alone and counts once: do not forward this mail."]
        lines += [f"In flettner: {notice.link}" if notice.link else ""]
        lines += [f"-- \nflettner · {host} · {notice.severity} · {notice.kind}"]
        message.set_content("\n\n".join(filter(None, lines)))
        return message

    def _password(self) -> str:
        password = read_secret(self.password_file)
        if not password.isascii():  # smtplib encodes it so for every way to log in
            why = "has characters beyond ASCII, which the login of SMTP does not take here"
            raise NoticeError(f"{self.password_file}: {why}", passes=True)
        return password

    def _key(self) -> bytes:
        key = read_secret(self.link_key_file)
        if len(key) < SHORTEST_KEY:
            why = f"{self.link_key_file}: must hold {SHORTEST_KEY} characters or more: `openssl rand -hex 32`"
            raise NoticeError(why, passes=True)
        return key.encode()


def _mac(key: bytes, decisions: str, signed: str) -> str:
    named = f"flettner mail link to {decisions}: {signed}"
    return hmac.new(key, named.encode(), hashlib.sha256).hexdigest()


def _form(approve: str, deny: str) -> str:
    """Sent to the page's own address; a press of a button is what decides."""
    return (
        '<form method="post" action="?"><p class="buttons">'
        f'<button class="primary" name="link" value="{escape(approve)}">Approve</button>'
        f'<button class="danger" name="link" value="{escape(deny)}">Deny</button></p></form>'
    )


def _identify(what: str, sender: str) -> str:
    return f"<flettner.{hashlib.sha256(what.encode()).hexdigest()[:32]}@{sender.rpartition('@')[2]}>"


plugin = Mail
