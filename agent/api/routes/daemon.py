"""The daemon: health, readiness, metrics and the OpenAPI document."""

import asyncio
from typing import Any, Literal

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from pydantic import BaseModel, Field

from flettner.agent.api.metrics import read_metrics
from flettner.agent.api.operations import Call, Operation, audit_unwritable
from flettner.agent.api.problems import RequestRefusedError
from flettner.agent.domain.errors import ConfigError, JournalError, RestartNeededError

DESCRIPTION: web.AppKey[bytes] = web.AppKey("description", bytes)


class HealthDocument(BaseModel):
    status: Literal["ok"] = "ok"


class ReadyDocument(BaseModel):
    status: Literal["ready"] = "ready"


class ConfigChangeDocument(BaseModel):
    key: str
    before: Any = Field(description="null: the key was absent; ***: it may be a secret")
    after: Any = Field(description="null: the key is absent; ***: it may be a secret")


class ReloadDocument(BaseModel):
    changes: list[ConfigChangeDocument] = Field(description="empty: the file is the same")
    waiting: list[str] = Field(
        description="targets whose running rollout goes on as it was approved; their changes come into "
        "force after it"
    )


async def _reload(call: Call) -> ReloadDocument:
    try:
        report = await call.daemon.reload(call.actor)
    except RestartNeededError as error:
        raise RequestRefusedError(409, str(error), kind="restart-needed") from error
    except ConfigError as error:
        detail = f"The file is invalid, so the earlier config stays in force. {error}"
        raise RequestRefusedError(409, detail, kind="invalid-config") from error
    except JournalError as error:
        raise audit_unwritable(error) from error
    changes = [ConfigChangeDocument(key=c.key, before=c.before, after=c.after) for c in report.changes]
    return ReloadDocument(changes=changes, waiting=list(report.waiting))


async def _health(_: Call) -> HealthDocument:
    return HealthDocument()


async def _ready(call: Call) -> ReadyDocument:
    if not call.daemon.ready():
        detail = (
            "The daemon is not ready: it has not recovered yet, or its loop makes no progress; see its log."
        )
        raise RequestRefusedError(503, detail, kind="not-ready", headers={"Retry-After": "5"})
    return ReadyDocument()


async def _metrics(call: Call) -> web.Response:
    """Read the state in the event loop and format it in a thread, as a page of many targets is large.

    There is no OpenMetrics page: it would have nothing more than this one.
    """
    page = await asyncio.to_thread(generate_latest, read_metrics(call.daemon))
    return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


async def _description(call: Call) -> web.Response:
    return web.Response(body=call.request.app[DESCRIPTION], content_type="application/json")


OPERATIONS = (
    Operation(
        name="health",
        method="GET",
        path="/healthz",
        role=None,
        summary="The process answers; from loopback without a token",
        handler=_health,
        response=HealthDocument,
    ),
    Operation(
        name="ready",
        method="GET",
        path="/readyz",
        role="viewer",
        summary="Recovery is done and the loop makes progress",
        handler=_ready,
        response=ReadyDocument,
        errors={503: "Not ready."},
    ),
    Operation(
        name="reloadConfig",
        method="POST",
        path="/v1/reload",
        role="admin",
        summary="Put the changed config file into force without a restart; can be repeated",
        handler=_reload,
        response=ReloadDocument,
        errors={409: "The file is invalid, or changes what needs a restart; the earlier config stays."},
    ),
    Operation(
        name="metrics",
        method="GET",
        path="/metrics",
        role="viewer",
        summary="The daemon's own metrics as Prometheus text",
        handler=_metrics,
        response=str,
        media="text/plain",
    ),
    Operation(
        name="describe",
        method="GET",
        path="/openapi.json",
        role="viewer",
        summary="This description",
        handler=_description,
        response=dict[str, Any],
    ),
)
