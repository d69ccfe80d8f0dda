"""What would happen with other flags or another load. Changes nothing."""

from collections.abc import Awaitable
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from flettner.agent.api.documents import Document, DocumentText, Values
from flettner.agent.api.operations import Call, Operation
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.api.routes.targets import UNKNOWN, KnobName, RequestedValue, find_target
from flettner.agent.domain.errors import WorkerError
from flettner.agent.domain.model_search import MOST_TIMES, Capacity
from flettner.agent.prediction.what_if import WhatIf
from flettner.performance_model.band import Band
from flettner.performance_model.errors import PredictionInputError
from flettner.vllm_facts.values import Value

Answer = TypeVar("Answer")
Times = Annotated[float, Field(ge=1 / MOST_TIMES, le=MOST_TIMES, allow_inf_nan=False)]


class PredictionBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    to: dict[KnobName, RequestedValue] = Field(
        default_factory=dict,
        max_length=16,
        description="by canonical flag name; absent: the flags in force",
        json_schema_extra={"additionalProperties": False},
    )
    rate: Times = Field(default=1.0, description="how many times as fast the requests come")
    prompt: Times = Field(default=1.0, description="how many times as long the prompts are")


class CurvePointDocument(Document):
    rate_rps: float = Field(description="requests per second, of one server")
    now: dict[str, Band] = Field(description="with the flags in force")
    then: dict[str, Band] = Field(description="with the flags that were asked for")


class PredictionDocument(Document):
    """Numbers by name: latencies `ttft_p90_s` in seconds, `attainment` as a share of the requests within the
    objectives. Of each, `low` to `high` holds 80 % of the draws."""

    target: str
    to: Values
    rate_rps: float = Field(description="recorded requests per second, of one server")
    requests: int = Field(description="recorded, that the prediction replays")
    law_source: str = Field(description="where the time of a step comes from")
    warning: DocumentText = Field(
        description="why vLLM would refuse the flags or run out of memory, or empty"
    )
    extrapolation: DocumentText = Field(
        description="why it is less certain: far from the measured steps or rate, or few requests; or empty"
    )
    now: dict[str, Band] = Field(description="with the flags and the load in force")
    then: dict[str, Band] = Field(description="with the flags and the load that were asked for")
    capacity: Capacity | None = Field(description="of the flags in force; null without objectives")
    then_capacity: Capacity | None
    curve: list[CurvePointDocument] = Field(description="both settings at several rates")


class CapacityForecastDocument(Document):
    """Of one server. Of each number, `low` to `high` holds 80 % of the draws."""

    suggestion: str = Field(description="id; empty: the setting in force")
    to: Values
    rate_rps: Band | None = Field(
        description="the most requests per second; null: not even a 64th of the recorded ones, or unknown"
    )
    cost_per_thousand_good_requests: Band | None = Field(description="at that rate; null without a price")
    extrapolation: DocumentText = Field(description="why it is less certain; or empty")
    why_not: DocumentText = Field(description="why it is not predicted; empty: it is")


class CapacityDocument(Document):
    target: str
    rate_rps: float = Field(description="recorded requests per second, of one server")
    gpus: int = Field(description="of one server")
    servers: int = Field(description="equal servers that share the load")
    share: float = Field(description="of the requests, that the objectives promise")
    law_source: str = Field(description="where the time of a step comes from")
    now: CapacityForecastDocument
    suggestions: list[CapacityForecastDocument] = Field(description="of the open ones, by rank")


async def _predict(call: Call) -> PredictionDocument:
    body = call.parsed_as(PredictionBody)
    target = find_target(call)
    changes: dict[str, Value] = dict(body.to)
    return document_of(target.state.target, await _answered(target.predict(changes, body.rate, body.prompt)))


async def _predict_capacity(call: Call) -> CapacityDocument:
    target = find_target(call)
    answer = await _answered(target.predict_capacity())
    return CapacityDocument.of(
        answer,
        target=target.state.target,
        now=CapacityForecastDocument.of(answer.now),
        suggestions=[CapacityForecastDocument.of(forecast) for forecast in answer.suggestions],
    )


async def _answered(prediction: Awaitable[Answer]) -> Answer:
    """Raises RequestRefusedError, as clients see why there is none."""
    try:
        return await prediction
    except PredictionInputError as error:
        raise RequestRefusedError(409, f"Nothing can be predicted: {error}", kind="no-prediction") from error
    except WorkerError as error:
        raise RequestRefusedError(
            503, f"{error}; try again in some seconds.", kind="busy", headers={"Retry-After": "5"}
        ) from error


def document_of(target: str, prediction: WhatIf) -> PredictionDocument:
    curve = [CurvePointDocument.of(point) for point in prediction.curve]
    return PredictionDocument.of(prediction, target=target, to=prediction.changes, curve=curve)


OPERATIONS = (
    Operation(
        name="predictCapacity",
        method="GET",
        path="/v1/targets/{name}/capacity",
        role="viewer",
        summary="The highest rate within the objectives, now and after each open suggestion; takes seconds",
        handler=_predict_capacity,
        response=CapacityDocument,
        errors={
            **UNKNOWN,
            409: "There is no accepted law, no promised latency, or too little traffic.",
            503: "Another prediction for this target is being computed.",
        },
    ),
    Operation(
        name="predictChange",
        method="POST",
        path="/v1/targets/{name}/predictions",
        role="viewer",
        summary="Predict what other flags or another load would do; changes nothing",
        handler=_predict,
        response=PredictionDocument,
        body=PredictionBody,
        decides=False,
        errors={
            **UNKNOWN,
            409: "There is no accepted law, too little traffic, or a flag that is not modelled.",
            503: "Another prediction for this target is being computed.",
        },
    ),
)
