"""docs/reference/rest.md: the REST API, from its OpenAPI document."""

from collections.abc import Iterator
from typing import Any

from flettner.agent.api.app import OPERATIONS
from flettner.agent.api.openapi import EVERY
from flettner.agent.api.openapi import document as described
from tests.integration.docs.markdown import code, table

Json = dict[str, Any]
HEAD = """\
# REST

JSON over HTTP, at the addresses of `[api] listen` ([security](../security.md)). `Authorization: Bearer
TOKEN`; roles: viewer < operator < admin. A change needs the header `Idempotency-Key`; a repeat with the
same key gets the same answer and changes nothing. `GET /openapi.json` returns the OpenAPI document.

```sh
curl -fsS -H "Authorization: Bearer $FLETTNER_TOKEN" http://127.0.0.1:8090/v1/targets/chat
curl -fsS -H "Authorization: Bearer $FLETTNER_TOKEN" -H 'Content-Type: application/json' \\
  -H 'Idempotency-Key: ask-1' -d '{{"to": {{"max_num_seqs": 32}}, "reason": "try"}}' \\
  http://127.0.0.1:8090/v1/targets/chat/suggestions
curl -fsS -H "Authorization: Bearer $FLETTNER_TOKEN" -H 'Content-Type: application/json' \\
  -H 'Idempotency-Key: approve-1' -d '{{"digest": "DIGEST-OF-IT"}}' http://127.0.0.1:8090/v1/suggestions/chat-s1/approve
```
On the unix socket, accounts with a role need no token: `curl --unix-socket /run/flettner/api.sock
http://localhost/v1/targets`.

Errors are problem documents (RFC 9457): `type`, `title`, `status`, `detail`. Every operation may return:

{every}
This page is generated: `python -m tests.integration.docs.reference`.

## Operations
"""


def document() -> str:
    api = described(OPERATIONS)
    every = table(("status", ""), [(status, says) for status, says in EVERY.items()])
    sections = [HEAD.format(every=every)]
    for path, methods in api["paths"].items():
        sections += (_operation(method.upper(), path, operation) for method, operation in methods.items())
    sections.append("## Shapes\n\n`?` marks optional members.\n")
    sections += (_shape(name, schema) for name, schema in api["components"]["schemas"].items())
    return "\n".join(sections)


def _operation(method: str, path: str, operation: Json) -> str:
    role = operation.get("x-role")
    lines = [f"### `{method} {path}`\n", f"{operation['summary']}\n"]
    lines.append(f"- Role: {role}" if role else "- Role: none")
    for parameter in operation["parameters"]:
        if parameter["in"] != "path":
            says = f": {parameter['description']}" if "description" in parameter else ""
            need = "" if parameter["required"] else "?"
            place, shape = parameter["in"].capitalize(), kind(parameter["schema"])
            lines.append(f"- {place} `{parameter['name']}`{need} ({shape}){says}")
    if "requestBody" in operation:
        lines.append(f"- Body: {kind(operation['requestBody']['content']['application/json']['schema'])}")
    for status, answer in operation["responses"].items():
        if int(status) in EVERY:
            continue
        media, given = next(iter(answer["content"].items()))
        shape = "a problem" if "problem" in media else f"{kind(given['schema'])}, `{media}`"
        says = "" if answer["description"] == operation["summary"] else f"; {answer['description']}"
        lines.append(f"- {status}: {shape}{says}")
    return "\n".join(lines) + "\n"


def _shape(name: str, schema: Json) -> str:
    head = f"### {name}\n"
    if "properties" not in schema:
        return f"{head}\n{kind(schema)}\n"
    needed = schema.get("required", [])
    rows = (
        (code(key) + ("" if key in needed else "?"), kind(member), member.get("description", ""))
        for key, member in schema["properties"].items()
    )
    return f"{head}\n{table(('name', 'type', ''), rows)}"


def kind(schema: Json) -> str:
    """Return a JSON schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(kind, choices)))
    if "enum" in schema:
        return ", ".join(code(choice) for choice in schema["enum"])
    if "const" in schema:
        return code(schema["const"])
    match schema.get("type"):
        case "array":
            return f"list of {kind(schema.get('items') or next(iter(schema.get('prefixItems', [])), {}))}"
        case "object":
            inner = schema.get("additionalProperties")
            return f"object of {kind(inner)}" if isinstance(inner, dict) and inner else "object"
        case None:
            return "any value"
        case value_type:
            return ", ".join((schema.get("format") or value_type, *_limits(schema)))


def _limits(schema: Json) -> Iterator[str]:
    words = {
        "minimum": "at least {}",
        "maximum": "at most {}",
        "exclusiveMinimum": "above {}",
        "minLength": "at least {} long",
        "maxLength": "at most {} long",
    }
    yield from (says.format(schema[key]) for key, says in words.items() if key in schema)
