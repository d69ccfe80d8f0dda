"""Decisions that a receiver of notices sends back, such as a button: the port of such notifiers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

from flettner.agent.api.tokens import Holder
from flettner.agent.domain.errors import FlettnerError
from flettner.agent.notify.rules import Notice, OutgoingNotice

SHORT_DIGEST = len("sha256:") + 16
"""Characters of a digest that a person types: they tell versions of one suggestion apart."""


class ForgedDecisionError(FlettnerError):
    """The request is not the service's, or comes too late. The message never repeats its content."""


class MisdirectedDecisionError(FlettnerError):
    """The request is genuine, and of a message of another receiver: an app has one address for all of its.

    `receiver`: the one that reads it, by its own key and its own people.
    """

    def __init__(self, receiver: str) -> None:
        super().__init__(f"it is of a message of {receiver}")
        self.receiver = receiver


WINDOW_S = 300.0
"""An older request may be a replay; the value is Slack's recommendation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    headers: Mapping[str, str]  # by any spelling of their names
    body: bytes
    at: datetime  # of its arrival, by the wall clock
    decisions: str  # the receiver's address, as in its notices

    def header(self, name: str) -> str:
        """Empty if it is missing, or has bytes that no service sends in a signature."""
        value = self.headers.get(name, "")
        return value if value.isascii() else ""

    def check_age(self, sent_s: float, what: str) -> None:
        """`sent_s`: Unix time at which `what` was signed. Raises ForgedDecisionError."""
        if abs(self.at.timestamp() - sent_s) > WINDOW_S:
            raise ForgedDecisionError(f"the {what} is older than 5 minutes, or the clock is wrong")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedDecision:
    id: str  # of what the person did: a second request with it is refused; empty: nothing is decided
    verb: Literal["approve", "deny", "show"]
    suggestion: str
    digest: str  # of the version that the person saw; of a typed one the first SHORT_DIGEST characters
    sender: str  # for the audit: "Slack user U012AB3CD"
    person: Holder | None  # None: the config names no such person
    reply_to: str = ""  # a URL of the service
    link: str = ""  # by which a person came, where that is how they decide


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionReply:
    text: str
    ends: bool = False  # nothing can be decided with the message any more
    notice: Notice | None = None  # the suggestion as it is now, to be looked at again


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionAnswer:
    """The response to the service, and a request to it, by which it changes its message."""

    body: bytes = b""
    media: str = "text/plain"
    headers: Mapping[str, str] = field(default_factory=dict)
    post: OutgoingNotice | None = None


@runtime_checkable
class DecisionSource(Protocol):
    """A notifier whose receivers can decide."""

    @property
    def takes_decisions(self) -> bool:
        """Whether the config has what that needs."""
        ...

    def read_decision(self, request: SignedRequest) -> ReceivedDecision:
        """Raises ForgedDecisionError, MisdirectedDecisionError, and NoticeError for an unreadable secret."""
        ...

    def answer(self, decision: ReceivedDecision, reply: DecisionReply) -> DecisionAnswer: ...


@runtime_checkable
class LinkedDecisionSource(DecisionSource, Protocol):
    """One whose people decide on a page of the API, to which a signed link leads."""

    def read_link(self, link: str, at: datetime, decisions: str) -> ReceivedDecision:
        """What the link to the receiver's address is for, as `show`. Raises as `read_decision`."""
        ...
