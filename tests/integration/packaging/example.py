"""Writes examples/kubernetes.yaml from the chart:

python -m tests.integration.packaging.example
"""

from pathlib import Path

from tests.support.helm import render

EXAMPLE = Path(__file__).parents[3] / "examples" / "kubernetes.yaml"
_HEAD = """\
# trimtab in the namespace of a vLLM Deployment named `vllm`: docs/kubernetes.md.
# It starts in mode "advise", which only reads. Create the token's Secret first:
#   trimtab token new --tokens-file tokens --role operator --name alice
#   kubectl create secret generic trimtab-tokens --from-file=tokens
# This is what the chart deploy/helm/trimtab renders with its default values.
"""


def text() -> str:
    return _HEAD + render()


if __name__ == "__main__":
    EXAMPLE.write_text(text())
