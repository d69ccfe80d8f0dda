"""The GPUs that a file asks for by name: labels of Kubernetes' nodes and options of Slurm's jobs."""

import re
from collections.abc import Iterator

from flettner.vllm_facts.launch_files.yaml_nodes import Node, entries, get, items, text_at, walk

_LABELS = frozenset(
    {
        *("nvidia.com/gpu.product", "gpu.nvidia.com/model", "gpu.nvidia.com/class"),
        *("cloud.google.com/gke-accelerator", "k8s.amazonaws.com/accelerator", "amd.com/gpu.product-name"),
    }
)
_JOB = re.compile(r"^#SBATCH[ \t]+(?P<options>\S[^\n#]*)", re.MULTILINE)
_ASKED = re.compile(
    r"(?:--gres[= ]gpu|--gpus-per-node|--gpus|-G)[:= ]?[ \t]*(?:(?P<name>[A-Za-z][\w.-]*):)?"
    r"(?P<count>\d{1,3})?(?![\w.:])"
)
_SIZE = re.compile(r"(?:--constraint[= ]|-C ?)\S{0,60}?(?<!\d)(?P<gb>\d{2,3})_?g", re.IGNORECASE)
_NODES = re.compile(r"(?:--nodes[= ]|-N ?)(?P<count>\d{1,4})(?!-?\d)")


def find_gpu_of_pods(document: Node) -> str:
    """The one kind of GPU to which the node labels of a resource lead; "" for none and for several."""
    names = set(_labels(document))
    return names.pop() if len(names) == 1 else ""


def _labels(node: Node) -> Iterator[str]:
    for name, value in walk(node):
        if name == "nodeSelector":
            yield from (str(each.value) for label, _, each in entries(value) if label in _LABELS)
        elif name == "matchExpressions":
            for term in items(value):
                if text_at(term, "key") in _LABELS and text_at(term, "operator") == "In":
                    yield from (str(each.value) for each in items(get(term, "values")))


def find_gpus_of_job(text: str) -> tuple[str, int | None, int]:
    """The GPUs of each host of a Slurm job, by name and number, and its hosts."""
    options = [found["options"].strip() for found in _JOB.finditer(text)]
    nodes = next((int(found["count"]) for each in options if (found := _NODES.match(each))), 1)
    for each in options:
        if asked := _ASKED.match(each):
            count = int(asked["count"]) if asked["count"] else None
            if count and nodes > 1 and each.startswith(("-G", "--gpus=", "--gpus ")):
                count = count // nodes or None  # of the whole job
            size = next((found["gb"] for each in options if (found := _SIZE.match(each))), "")
            name = asked["name"] or ""
            return f"{name} {size}GB" if name and size else name, count, nodes
    return "", None, nodes
