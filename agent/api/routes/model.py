"""What the performance model has learned of a target: the law of step time, its errors, the trace, and what
became of its predictions."""

import json
from collections.abc import Sequence
from datetime import datetime
from itertools import islice

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from flettner.agent.api.documents import Document, DocumentText, Values
from flettner.agent.api.operations import Call, Operation
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.api.routes.targets import find_target
from flettner.agent.domain.prediction_check import BANDS_HOLD, LawDrop, PredictionCheck, bias, coverage
from flettner.agent.domain.state import State
from flettner.agent.prediction.learned import LawSource, LearnedModel, TokenCounts
from flettner.agent.prediction.what_if import modelled_flags
from flettner.performance_model.acceptance import ITL_ERROR, TTFT_ERROR, WINDOW_S, WINDOWS
from flettner.performance_model.band import Band
from flettner.performance_model.resample import window
from flettner.performance_model.step_law import COEFFICIENTS, UncertainLaw, write_law
from flettner.performance_model.trace import duration_s, mean_rate, write_trace

TRACE_MEDIA = "application/jsonl"
LINES_AT_ONCE = 500  # of a trace: about 3 ms of the event loop


class CoefficientDocument(Document):
    value: float
    low: float = Field(description="80 % of the laws that fit as well have it from here")
    high: float = Field(description="to here")


class LawDocument(Document):
    """Microseconds: a + b * max(0, tokens - knee) + c * sequences + d * kv_read + e * attention."""

    source: str
    knee: float = Field(description="tokens")
    coefficients: dict[str, CoefficientDocument] = Field(
        description="step_us, token_us, sequence_us, kv_read_us, attention_us"
    )
    flettner_step_law: int = Field(
        description="with the next ones: a file for `--law`; version of the format"
    )
    law: dict[str, float] = Field(description="the most likely one")
    draws: list[dict[str, float]] = Field(description="others that fit as well")
    fitted_to: dict[str, float] | None = Field(
        default=None, description="tokens, sequences of the largest step"
    )
    wait_error: float = Field(
        default=0.0, description="error of TTFT beyond that of the steps, sigma of its logarithm"
    )


class CheckDocument(Document):
    """Predictions of windows that the law had not seen, as (predicted / measured - 1)."""

    window_s: float
    needed: int = Field(description="windows that are compared before a law is accepted")
    itl_errors: list[float] = Field(description="of the mean time between tokens, the latest last")
    itl_limit: float = Field(description="of their mean size")
    ttft_errors: list[float] = Field(description="of the TTFT that 90 % of the requests stay below")
    ttft_limit: float


class LoadDocument(Document):
    requests: int
    seconds: float
    rate_rps: float
    prompt_tokens: float = Field(description="mean")
    output_tokens: float = Field(description="mean")
    cached_share: float = Field(description="of the prompt tokens, found in the prefix cache")
    counts_from: TokenCounts = Field(
        description="records: of single requests, from the proxy; histograms: drawn from vLLM's histograms"
    )
    servers: int = Field(
        description="equal servers, or their engines, that share the target's load; the trace is of one"
    )


class RolloutCheckDocument(Document):
    """The hold step of a rollout beside what the law from before it predicted for the same requests."""

    rollout: str
    at: datetime
    to: Values
    requests: int = Field(description="measured, of the new servers")
    predicted: dict[str, Band]
    measured: dict[str, float] = Field(description="latencies: the upper edge of their bucket")
    misses: bool = Field(description="TTFT or the time between tokens lies outside its band")


class RecordDocument(Document):
    """Names: `attainment`, `ttft_p90_s`, `itl_p90_s`."""

    bands_hold: float = Field(
        default=BANDS_HOLD, description="share of measured numbers that bands shall hold"
    )
    coverage: dict[str, float] = Field(description="share of the rollouts with the number inside its band")
    bias: dict[str, float] = Field(
        description="mean error, above 0 where predictions are too large: of latencies relative, of "
        "`attainment` in shares"
    )
    rollouts: list[RolloutCheckDocument] = Field(description="at most 20, the latest last")
    dropped_at: datetime | None = Field(description="when a law was last dropped; null: none was")
    dropped: DocumentText = Field(description="why it was; empty: none was")


class ModelDocument(Document):
    target: str
    at: datetime | None = Field(default=None, description="of the last lesson; null before the first")
    law: LawDocument | None = Field(default=None, description="in force; null: none is accepted")
    law_source: LawSource = Field(default="", description="what the newest law was fitted to")
    windows: int = Field(default=0, description="of steps, which the newest law was fitted to")
    check: CheckDocument
    record: RecordDocument
    load: LoadDocument | None = None
    kv_tokens: int | None = Field(default=None, description="size of a server's KV cache")
    outside_s: float = Field(
        default=0.0, description="mean time of a TTFT outside the engine: API server, tokenizer"
    )
    modelled: Values = Field(
        default_factory=dict, description="flags whose effect a prediction tells, with the values in force"
    )
    why_no_law: str = Field(description="and what would help; empty with a law")


class TraceQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    minutes: int = Field(default=15, ge=1, le=15)


async def _show(call: Call) -> ModelDocument:
    target = find_target(call)
    return model_of(target.state, target.model)


async def _trace(call: Call) -> web.StreamResponse:
    target = find_target(call)
    model = target.model
    if model is None or not len(model.trace):
        name = target.state.target
        detail = f"No request of {name} is recorded yet: the first trace comes after a minute with requests."
        raise RequestRefusedError(409, detail, kind="no-trace")
    seconds = 60.0 * call.parsed_as(TraceQuery).minutes
    since_s = max(0.0, duration_s(model.trace) - seconds)
    lines = write_trace(window(model.trace, since_s, seconds + 1.0))
    response = web.StreamResponse(headers={"Content-Type": TRACE_MEDIA})
    await response.prepare(call.request)
    while text := "".join(islice(lines, LINES_AT_ONCE)):
        await response.write(text.encode())
    await response.write_eof()
    return response


def model_of(state: State, model: LearnedModel | None) -> ModelDocument:
    target, record = state.target, _record_of(state.predictions, state.law_drop)
    acceptance = model.acceptance if model else None
    check = CheckDocument(
        window_s=WINDOW_S,
        needed=WINDOWS,
        itl_errors=list(acceptance.itl) if acceptance else [],
        itl_limit=ITL_ERROR,
        ttft_errors=list(acceptance.ttft) if acceptance else [],
        ttft_limit=TTFT_ERROR,
    )
    if model is None:
        why = "the daemon has learned nothing yet: the first lesson is after a minute, unless learn = false"
        return ModelDocument(target=target, check=check, record=record, why_no_law=why)
    return ModelDocument.of(
        model,
        target=target,
        at=model.fitted_at,
        law=_law_of(model.law) if model.law else None,
        windows=model.rows,
        check=check,
        record=record,
        load=_load_of(model) if len(model.trace) else None,
        modelled=modelled_flags(model),
    )


def _law_of(law: UncertainLaw) -> LawDocument:
    coefficients = {}
    for name in COEFFICIENTS:
        low, high = law.interval(name)
        coefficients[name] = CoefficientDocument(value=getattr(law.law, name), low=low, high=high)
    return LawDocument(knee=law.law.knee, coefficients=coefficients, **json.loads(write_law(law)))


def _record_of(checks: Sequence[PredictionCheck], drop: LawDrop | None) -> RecordDocument:
    return RecordDocument(
        coverage=dict(coverage(checks)),
        bias=dict(bias(checks)),
        rollouts=[RolloutCheckDocument.of(check) for check in checks],
        dropped_at=drop.at if drop else None,
        dropped=drop.why if drop else "",
    )


def _load_of(model: LearnedModel) -> LoadDocument:
    trace, seconds = model.trace, duration_s(model.trace)
    prompts = sum(request.prompt_tokens for request in trace)
    cached = sum(request.cached_tokens for request in trace)
    return LoadDocument(
        requests=len(trace),
        seconds=seconds,
        rate_rps=mean_rate(trace) or 0.0,
        prompt_tokens=prompts / len(trace),
        output_tokens=sum(request.output_tokens for request in trace) / len(trace),
        cached_share=cached / max(1, prompts),
        counts_from=model.counts_from,
        servers=model.servers,
    )


OPERATIONS = (
    Operation(
        name="showModel",
        method="GET",
        path="/v1/targets/{name}/model",
        role="viewer",
        summary="What the performance model has learned: the law of step time, its errors, the load",
        handler=_show,
        response=ModelDocument,
        errors={404: "No such target."},
    ),
    Operation(
        name="showTrace",
        method="GET",
        path="/v1/targets/{name}/trace",
        role="viewer",
        summary="The recorded load of one server as JSON lines, without any text of requests",
        handler=_trace,
        response=str,
        media=TRACE_MEDIA,
        query=TraceQuery,
        errors={404: "No such target.", 409: "Nothing is recorded yet."},
    ),
)
