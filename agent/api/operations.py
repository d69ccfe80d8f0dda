"""One operation of the API as data, the source of both the routes and the OpenAPI document."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from flettner.agent.api.daemon_view import DaemonView, TargetView
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.api.tokens import Holder
from flettner.agent.config.listen import Role
from flettner.agent.domain.errors import JournalError
from flettner.agent.domain.events import PersonDecision
from flettner.agent.domain.state import State

OperationRequest = TypeVar("OperationRequest", bound=BaseModel)


def audit_unwritable(error: JournalError) -> RequestRefusedError:
    return RequestRefusedError(
        503,
        f"Nothing was changed: the audit journal cannot be written ({error}). Free disk space or"
        " correct its permissions, then try again.",
        kind="audit-unwritable",
        headers={"Retry-After": "10"},
    )


class NoQuery(BaseModel):
    """An operation that takes no query parameters."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One authorised request with a valid query and body."""

    request: web.Request
    daemon: DaemonView
    holder: Holder | None  # None only where the operation needs no role
    query: BaseModel
    body: BaseModel | None
    request_name: str = ""  # identifies a repeat in the journal; empty without a key
    accepted: State | None = None  # the resulting state, if accepted before the daemon started

    def parsed_as(self, kind: type[OperationRequest]) -> OperationRequest:
        """The body or the query, whichever has this type."""
        for part in (self.body, self.query):
            if isinstance(part, kind):
                return part
        raise TypeError(f"{self.request.path} was not declared with {kind.__name__}")

    @property
    def by_admin(self) -> bool:
        return self.holder is not None and self.holder.allows("admin")

    @property
    def actor(self) -> str:
        if self.holder is None:
            raise TypeError(f"{self.request.path} needs no token, so there is no actor")
        return self.holder.principal

    def part(self, name: str) -> str:
        """A variable part of the path."""
        return self.request.match_info[name]

    def state(self, target: str) -> State | None:
        """None if the config no longer has the target, or the caller does not see it."""
        view = self.daemon.targets().get(target)
        return view.state if view is not None else None

    async def submit(self, target: TargetView, event: PersonDecision) -> State:
        """Submit a decision; it is journalled when this returns.

        Raises RequestRefusedError (503) if the audit journal cannot be written.

        A repeat of a request accepted before the daemon started changes nothing and returns its result.
        """
        if self.accepted is not None:
            return self.accepted
        try:
            return await target.submit(replace(event, request=self.request_name))
        except JournalError as error:
            raise audit_unwritable(error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationResult:
    """A value of the operation's type with response headers."""

    value: object
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    name: str  # operationId
    method: Literal["GET", "POST"]
    path: str
    role: Role | None  # None: loopback needs no token
    summary: str
    handler: Callable[[Call], Awaitable[BaseModel | OperationResult | web.StreamResponse]]
    response: Any  # type of the JSON answer; str for text of the media type `media`
    media: str = "application/json"
    status: int = 200
    query: type[BaseModel] = NoQuery
    body: type[BaseModel] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # of the response: name and description
    request_headers: Mapping[str, str] = field(default_factory=dict)  # optional request headers
    errors: Mapping[int, str] = field(default_factory=dict)  # besides the errors of every operation
    decides: bool = True  # a POST: False if it changes nothing

    @property
    def needs_key(self) -> bool:
        """Whether an Idempotency-Key is required: for decisions; a pause is idempotent by itself."""
        return self.method == "POST" and self.body is not None and self.decides
