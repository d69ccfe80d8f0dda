"""One operation of the API as data: the routes and the OpenAPI document are both made of these."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from agent.api.daemon_view import DaemonView
from agent.api.problems import RequestRefusedError
from agent.api.tokens import Holder
from agent.config.listen import Role
from agent.domain.errors import JournalError
from agent.domain.events import PersonDecision
from agent.domain.state import State

OperationRequest = TypeVar("OperationRequest", bound=BaseModel)


class NoQuery(BaseModel):
    """An operation that takes no query parameters."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request that was let in: its holder has the role, its query and body are valid."""

    request: web.Request
    daemon: DaemonView
    holder: Holder | None  # None only where the operation needs no role
    query: BaseModel
    body: BaseModel | None
    request_name: str = ""  # by what a repeat of it is known again; empty: it has no key
    accepted: State | None = None  # what it led to, when it was accepted before the daemon started

    def asked(self, kind: type[OperationRequest]) -> OperationRequest:
        """The body or the query, whichever is of this kind."""
        for part in (self.body, self.query):
            if isinstance(part, kind):
                return part
        raise TypeError(f"{self.request.path} was not declared with {kind.__name__}")

    @property
    def actor(self) -> str:
        if self.holder is None:
            raise TypeError(f"{self.request.path} needs no token, so there is no actor")
        return self.holder.principal

    def part(self, name: str) -> str:
        """A variable part of the path."""
        return self.request.match_info[name]

    async def submit(self, target: str, event: PersonDecision) -> State:
        """Journalled when it returns; a refusal of status 503 when the audit cannot be written.

        A repeat of what was accepted before the daemon started changes nothing, and gives what it led to.
        """
        if self.accepted is not None:
            return self.accepted
        try:
            return await self.daemon.submit(target, replace(event, request=self.request_name))
        except JournalError as error:
            raise RequestRefusedError(
                503,
                f"Nothing was changed: the audit journal cannot be written ({error}). Free the disk or mend"
                " its permissions, then ask again.",
                kind="audit-unwritable",
                headers={"Retry-After": "10"},
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationResult:
    """A value of the operation's type, where headers go with it."""

    value: object
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    name: str  # operationId
    method: Literal["GET", "POST"]
    path: str
    role: Role | None  # None: loopback needs no token
    summary: str
    answer: Callable[[Call], Awaitable[BaseModel | OperationResult | web.StreamResponse]]
    gives: Any  # type of the JSON answer; str for text of the media type `media`
    media: str = "application/json"
    status: int = 200
    query: type[BaseModel] = NoQuery
    body: type[BaseModel] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # of the answer: name and what it says
    takes: Mapping[str, str] = field(default_factory=dict)  # optional request headers
    refuses: Mapping[int, str] = field(default_factory=dict)  # besides what every operation refuses

    @property
    def needs_key(self) -> bool:
        """Whether it is a decision, which must carry an Idempotency-Key; a pause says what shall be."""
        return self.method == "POST" and self.body is not None
