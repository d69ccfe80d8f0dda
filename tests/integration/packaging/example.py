"""Writes the plain manifests in examples/ from the chart:

python -m tests.integration.packaging.example
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.helm import render

_FOLDER = Path(__file__).parents[3] / "examples"
_DAEMON = """\
# flettner in the namespace of a vLLM Deployment named `vllm`: docs/kubernetes.md.
# It starts in mode "advise", which only reads. Create the token's Secret first:
#   flettner token new --tokens-file tokens --role operator --name alice
#   kubectl create secret generic flettner-tokens --from-file=tokens
# This is what the chart deploy/helm/flettner renders with its default values.
"""
_GUARD = """\
# The guard of HTTPRoutes that flettner splits, and the rights that it needs for them: docs/kubernetes.md.
# This is what the chart deploy/helm/flettner renders besides, with mode "approve" and guard.enabled.
"""


def daemon() -> str:
    return _DAEMON + render()


def guard() -> str:
    return _GUARD + render({"mode": "approve", "guard": {"enabled": True}}, templates=("guard",))


EXAMPLES: Mapping[Path, Callable[[], str]] = {
    _FOLDER / "kubernetes.yaml": daemon,
    _FOLDER / "gateway-guard.yaml": guard,
}

if __name__ == "__main__":
    for path, text in EXAMPLES.items():
        path.write_text(text())
