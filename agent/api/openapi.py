"""The OpenAPI 3.1 document, from the same table of operations that the routes are made of."""

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from flettner.agent.api.idempotency import HEADER, SHAPE
from flettner.agent.api.operations import Operation
from flettner.agent.api.problems import MEDIA, Problem

Json = dict[str, Any]

EVERY: Mapping[int, str] = {
    401: "No token, or one that is unknown, revoked or expired.",
    403: "A page of another site sends the request, or the token's role is too low.",
    421: "The Host header names a host that this API does not answer for.",
    422: "A parameter or the body is not of the shape that is described here.",
    429: "Too many requests; Retry-After says when to come back.",
    500: "A bug; the daemon's log has the details.",
}
WITH_BODY: Mapping[int, str] = {
    400: "The body is not JSON, or there is no Idempotency-Key.",
    408: "The body did not arrive in time.",
    413: "The body is larger than 64 KiB.",
    415: "The body is not application/json.",
}
CHANGING: Mapping[int, str] = {
    409: "The first request with this Idempotency-Key is still in progress, or was another one.",
    503: "The audit journal cannot be written, so nothing was changed.",
}
REPEATS = "a repeat with the same key gets the same answer and changes nothing"


class _Schemas:
    """The schema components that the operations refer to."""

    def __init__(self) -> None:
        self.by_name: Json = {}

    def of(self, kind: Any, mode: Literal["validation", "serialization"]) -> Json:  # noqa: ANN401
        schema = TypeAdapter(kind).json_schema(mode=mode, ref_template="#/components/schemas/{model}")
        self.by_name.update(schema.pop("$defs", {}))
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return schema
        self.by_name[kind.__name__] = schema
        return {"$ref": f"#/components/schemas/{kind.__name__}"}


def refusals(operation: Operation) -> Mapping[int, str]:
    """Every status of a problem document that the operation can answer, and what it means."""
    body = WITH_BODY if operation.body else {}
    changing = CHANGING if operation.method == "POST" else {}
    return dict(sorted({**EVERY, **body, **changing, **operation.errors}.items()))


def document(operations: Sequence[Operation]) -> Json:
    schemas = _Schemas()
    paths: Json = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "flettner",
            "version": version("flettner"),
            "description": "Watch vLLM servers, approve suggestions, roll back changes.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.by_name.items())),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "`fl_<id>_<secret>`, made by `flettner token new`;"
                    " roles: viewer < operator < admin. `x-role` is the least role of an operation."
                    " Over the unix socket root, the daemon's own user and those of [api] users and groups"
                    " need none.",
                }
            },
        },
    }


def _described(operation: Operation, schemas: _Schemas) -> Json:
    described: Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": _parameters(operation, schemas),
        "responses": _responses(operation, schemas),
        "security": [{"bearer": []}],
    }
    if operation.role is None:
        described["security"].append({})
    else:
        described["x-role"] = operation.role
    if operation.body is not None:
        schema = schemas.of(operation.body, "validation")
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return described


def _parameters(operation: Operation, schemas: _Schemas) -> list[Json]:
    parameters: list[Json] = [
        {"in": "path", "name": name, "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    query = TypeAdapter(operation.query).json_schema(ref_template="#/components/schemas/{model}")
    schemas.by_name.update(query.pop("$defs", {}))
    for name, schema in query.get("properties", {}).items():
        required = name in query.get("required", [])
        parameters.append({"in": "query", "name": name, "required": required, "schema": schema})
    takes: Json = {name: ({"type": "string"}, text) for name, text in operation.request_headers.items()}
    if operation.method == "POST":
        takes[HEADER] = ({"type": "string", "pattern": f"^{SHAPE.pattern}$"}, REPEATS)
    for name, (schema, text) in takes.items():
        parameters.append(
            {
                "in": "header",
                "name": name,
                "required": name == HEADER and operation.needs_key,
                "description": text,
                "schema": schema,
            }
        )
    return parameters


def _responses(operation: Operation, schemas: _Schemas) -> Json:
    good: Json = {
        "description": operation.summary,
        "content": {operation.media: {"schema": schemas.of(operation.response, "serialization")}},
    }
    if operation.headers:
        good["headers"] = {
            name: {"description": says, "schema": {"type": "string"}}
            for name, says in operation.headers.items()
        }
    problem = {MEDIA: {"schema": schemas.of(Problem, "serialization")}}
    bad = {
        str(status): {"description": says, "content": problem} for status, says in refusals(operation).items()
    }
    return {str(operation.status): good, **bad}
