"""The Helm chart, rendered by Helm itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import helm_python
import yaml

Json = dict[str, Any]

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "flettner"
ORDER = (
    "rbac",
    "claim",
    "config",
    "daemon",
    "proxy",
    "services",
    "records",
    "guard",
    "networkpolicy",
    "servicemonitor",
)
"""The templates in the order in which a reader, and `kubectl apply`, needs them."""


def render(
    values: Mapping[str, object] | None = None,
    *,
    name: str = "flettner",
    namespace: str = "chat",
    templates: Sequence[str] = ORDER,
) -> str:
    """The manifests as text, with their comments, as `helm template` prints them."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(dict(values or {}), name=name, namespace=namespace)
    by_template = {Path(path).stem: text.strip() for path, text in files.items() if path.endswith(".yaml")}
    assert by_template.keys() == set(ORDER), "name each template in ORDER"
    return "\n---\n".join(by_template[template] for template in templates if by_template[template]) + "\n"


def manifests(
    values: Mapping[str, object] | None = None, *, name: str = "flettner", namespace: str = "chat"
) -> list[Json]:
    return list(yaml.safe_load_all(render(values, name=name, namespace=namespace)))


def of_kind(kind: str, documents: list[Json]) -> Json:
    """The first one."""
    return next(document for document in documents if document["kind"] == kind)
