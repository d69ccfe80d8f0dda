"""The CustomResourceDefinition of HTTPRoute: fields, limits and rules of the Gateway API v1 that matter here.

The API server 1.20 knows no CEL. Its rules on backends (kubernetes-sigs/gateway-api, apis/v1: "Must have port
for Service reference", "RequestRedirect filter must not be used together with backendRefs") are written as
alternatives of the schema instead.
"""

import asyncio

from tests.support.kubernetes.api import Api, ApiError, Json

_GROUP = "gateway.networking.k8s.io"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_ANY: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEXT: Json = {"type": "string"}


def _listed(items: Json, most: int) -> Json:
    return {"type": "array", "maxItems": most, "items": items}


def _of(properties: Json, *required: str) -> Json:
    schema: Json = {"type": "object", "properties": properties}
    return schema | ({"required": list(required)} if required else {})


_FILTER: Json = _of({"type": _TEXT}) | {"x-kubernetes-preserve-unknown-fields": True}
_NOT_A_SERVICE: list[Json] = [
    {"properties": {"kind": {"not": {"enum": ["Service"]}}}},
    {"required": ["group"], "properties": {"group": {"minLength": 1}}},
]
_BACKEND = _of(
    {
        "group": _TEXT,  # the API's default is "", which 1.20 takes for null
        "kind": {**_TEXT, "default": "Service"},
        "name": {**_TEXT, "minLength": 1, "maxLength": 253},
        "namespace": _TEXT,
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
        "weight": {"type": "integer", "format": "int32", "default": 1, "minimum": 0, "maximum": 1_000_000},
        "filters": _listed(_FILTER, 16),
    },
    "name",
) | {"anyOf": [{"required": ["port"]}, *_NOT_A_SERVICE]}
_RULE = _of(
    {
        "name": _TEXT,
        "matches": _listed(_ANY, 64),
        "filters": _listed(_FILTER, 16),
        "backendRefs": _listed(_BACKEND, 16),
        "timeouts": _ANY,
        "retry": _ANY,
        "sessionPersistence": _ANY,
    }
) | {
    "anyOf": [
        {"properties": {"backendRefs": {"maxItems": 0}}},
        {
            "properties": {
                "filters": {"items": {"properties": {"type": {"not": {"enum": ["RequestRedirect"]}}}}}
            }
        },
    ]
}
_CONDITION = _of(
    {
        "type": _TEXT,
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "reason": _TEXT,
        "message": _TEXT,
    },
    "type",
    "status",
    "lastTransitionTime",
    "reason",
    "message",
)
_PARENT = _of(
    {"controllerName": _TEXT, "parentRef": _ANY, "conditions": _listed(_CONDITION, 8)},
    "controllerName",
    "parentRef",
)
_ROUTE = _of(
    {
        "apiVersion": _TEXT,
        "kind": _TEXT,
        "metadata": {"type": "object"},
        "spec": _of(
            {
                "parentRefs": _listed(_ANY, 32),
                "hostnames": _listed(_TEXT, 16),
                "rules": _listed(_RULE, 16),
            }
        ),
        "status": _of({"parents": _listed(_PARENT, 32)}),
    },
    "spec",
)
CRD: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"httproutes.{_GROUP}",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a copy for tests"},
    },
    "spec": {
        "group": _GROUP,
        "scope": "Namespaced",
        "names": {
            "kind": "HTTPRoute",
            "plural": "httproutes",
            "singular": "httproute",
            "listKind": "HTTPRouteList",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": _ROUTE},
            }
        ],
    },
}


async def install(api: Api) -> None:
    """Let the cluster know HTTPRoutes; once for all tests of a session."""
    try:
        await api.create(_CRDS, CRD)
    except ApiError as error:
        if error.status != 409:
            raise
    while not _is_established(await api.get(f"{_CRDS}/{CRD['metadata']['name']}")):
        await asyncio.sleep(0.05)


def _is_established(document: Json) -> bool:
    conditions = (document.get("status") or {}).get("conditions") or []
    return ("Established", "True") in {(condition["type"], condition["status"]) for condition in conditions}
