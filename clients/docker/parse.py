"""Validate container lists and events of the Docker Engine: the fields in use; other shapes are refused."""

from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import (
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from flettner.agent.domain.errors import SensorError
from flettner.agent.plugins.option_errors import describe_problem

_T = TypeVar("_T")
_SHOWN = 200
_MAX_TIME_NS = 2**63  # of the Engine's own integers


def _or(empty: Callable[[], object]) -> BeforeValidator:
    """Accept null, which the Engine writes for an empty value."""
    return BeforeValidator(lambda value: empty() if value is None else value)


_Text = Annotated[str, _or(str)]
_Words = Annotated[dict[str, str], _or(dict)]
_Id = Annotated[str, StringConstraints(min_length=1)]


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class PublishedPort(_Shape):
    """`public`: 0 where it is not published."""

    host: _Text = Field("", validation_alias="IP")
    public: int = Field(0, validation_alias="PublicPort", ge=0, lt=2**16)


class NetworkEndpoint(_Shape):
    """The connection to one network; a container has a new `id` at every start."""

    id: _Text = Field("", validation_alias="EndpointID")
    address: _Text = Field("", validation_alias="IPAddress")


class ContainerSummary(_Shape):
    """A container as a list of containers shows it."""

    id: _Id = Field(validation_alias="Id")
    names: Annotated[list[str], _or(list)] = Field([], validation_alias="Names")
    labels: _Words = Field({}, validation_alias="Labels")
    state: _Text = Field("", validation_alias="State")
    status: _Text = Field("", validation_alias="Status")
    ports: Annotated[list[PublishedPort], _or(list)] = Field([], validation_alias="Ports")
    networks: Annotated[dict[str, NetworkEndpoint | None], _or(dict)] = Field(
        {}, validation_alias=AliasPath("NetworkSettings", "Networks")
    )


class ContainerEvent(_Shape):
    """`attributes`: of the actor; for a container its labels, its name, and details such as exitCode."""

    kind: _Text = Field("", validation_alias="Type")
    action: _Text = Field("", validation_alias="Action")
    actor: _Text = Field("", validation_alias=AliasPath("Actor", "ID"))
    attributes: _Words = Field({}, validation_alias=AliasPath("Actor", "Attributes"))
    time_ns: int = Field(0, validation_alias="timeNano", ge=0, lt=_MAX_TIME_NS)


_EVENT = TypeAdapter(ContainerEvent)
_SUMMARIES = TypeAdapter(tuple[ContainerSummary, ...])


def event_of(line: bytes) -> ContainerEvent:
    """Raises SensorError."""
    return _read(_EVENT, line)


def summaries_of(body: bytes) -> tuple[ContainerSummary, ...]:
    """Raises SensorError."""
    return _read(_SUMMARIES, body)


def _read(shape: TypeAdapter[_T], text: bytes) -> _T:
    try:
        return shape.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{where} {describe_problem(first)}".strip()[:_SHOWN]
        raise SensorError(f"an answer of the Docker Engine cannot be read: {what}") from error
