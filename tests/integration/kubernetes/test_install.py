"""The manifests of the chart on a real API server."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.helm import manifests
from tests.support.kubernetes.engines import CLAIM
from tests.support.kubernetes.namespace import Namespace

ALL: Mapping[str, Any] = {
    "mode": "auto",
    "persistence": CLAIM,
    "api": {"tls": {"secretName": "flettner-tls"}},
    "networkPolicy": {"enabled": True},
}


@pytest.mark.any_cluster
@pytest.mark.parametrize("values", [{"persistence": CLAIM}, ALL], ids=["default", "all"])
async def test_each_manifest_is_accepted(here: Namespace, values: Mapping[str, Any]) -> None:
    for manifest in manifests(values, namespace=here.name):
        if manifest["apiVersion"] == "policy/v1":
            manifest["apiVersion"] = here.policy  # with the same fields
        kind = manifest["kind"].lower().removesuffix("y")
        await here.create(f"{kind}ies" if manifest["kind"].endswith("y") else f"{kind}s", manifest)
